// SPDX-License-Identifier: Apache-2.0
// Maps a lease's DEVICE memory to one range of addresses in this process. The memory is a memfd
// that plays DEVICE, or as many slabs of a GPU as the server has granted.
// Thread: Grow, Cut, mapped_bytes: one at a time. The rest: any.
// Units: bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/device_slabs.h"
#include "client/wire/connection.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/unique_fd.h"

namespace gemini::client {

using MakeDeviceSlabs =
    std::function<absl::StatusOr<std::unique_ptr<DeviceSlabs>>(const DeviceSlabsOffer&)>;

class DeviceArena {
 public:
  // What the server offered: `size_bytes` of addresses, in slabs or (slab_bytes 0) in the only
  // descriptor.
  struct Offer {
    int64_t size_bytes = 0;
    int64_t slab_bytes = 0;
    int64_t granted_bytes = 0;
    std::string gpu_uuid;  // As in DeviceSlabsOffer, and so is the next.
    bool is_counted = false;
    std::vector<UniqueFd> fds;
  };

  // Maps the descriptor, or reserves the addresses, which Grow fills with slabs. `connection`
  // outlives it. `make_slabs` is null if no GPU is to be used. FAILED_PRECONDITION: a GPU is to be
  // used and the server has none, or the reverse. INVALID_ARGUMENT: the server's offer contradicts
  // itself. Errors of make_slabs, DeviceSlabs::Map and Connection::Call pass through.
  static absl::StatusOr<std::unique_ptr<DeviceArena>> Map(Connection& connection, Offer offer,
                                                          const MakeDeviceSlabs& make_slabs);

  // Requests slabs and maps them until there are `size_bytes`, which the lease's target covers.
  // RESOURCE_EXHAUSTED: the GPU does not have that much memory. Others: as Map. Slabs that were
  // mapped stay.
  absl::Status Grow(int64_t size_bytes);
  // Unmaps slabs beyond `size_bytes`, which nothing uses any more, and has the server destroy them.
  // Errors: as DeviceSlabs::Keep and Connection::Call.
  absl::Status Cut(int64_t size_bytes);
  // Returns the unit that a budget must be a multiple of, or 0 if any size will do.
  int64_t slab_bytes() const { return slab_bytes_; }

  std::byte* data() const { return slabs_ != nullptr ? slabs_->data() : memory_.data(); }
  // Returns the size of its address range.
  int64_t size_bytes() const { return size_bytes_; }
  // Returns how many bytes from the beginning are mapped. Those of them that the lease grants may
  // be used.
  int64_t mapped_bytes() const {
    return slabs_ != nullptr ? slabs_->num_mapped() * slab_bytes_ : size_bytes_;
  }

 private:
  DeviceArena(Connection& connection, const Offer& offer)
      : connection_(connection), size_bytes_(offer.size_bytes), slab_bytes_(offer.slab_bytes) {}
  // Makes the server destroy the slabs that are not mapped here.
  absl::Status GiveBackUnmapped();

  Connection& connection_;
  const int64_t size_bytes_;
  const int64_t slab_bytes_;
  MappedMemory memory_;                 // For a memfd.
  std::unique_ptr<DeviceSlabs> slabs_;  // Null without a GPU.
};

}  // namespace gemini::client
