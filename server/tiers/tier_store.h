// SPDX-License-Identifier: Apache-2.0
// Makes and destroys the bytes of one tier. A grant is made anew for each tenant and destroyed
// after it, never recycled, so that no tenant reads another's bytes.
// Thread: any; Make and Destroy block on the kernel or a disk, so they run on a worker.
// Units:  sizes in bytes, room in slots (a slot holds one chunk).
// Errors: on an error nothing is held.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/system/unique_fd.h"
#include "gemini/tier.h"

namespace gemini::server {

// One descriptor's worth of a grant: slots one after another from offset 0.
struct TierExtent {
  UniqueFd fd;
  int64_t num_slots = 0;
  int64_t place = 0;  // For the store that made it: the index of the directory.
};

struct TierGrant {
  int64_t slot_bytes = 0;
  int64_t slots_per_extent = 0;  // Of each extent but the last, which may have fewer. NVME: varies.
  std::vector<TierExtent> extents;
  int64_t size_bytes() const {
    int64_t slots = 0;
    for (const TierExtent& extent : extents) slots += extent.num_slots;
    return slots * slot_bytes;
  }
};

class TierStore {
 public:
  virtual ~TierStore() = default;

  virtual Tier tier() const = 0;
  virtual int64_t capacity_bytes() const = 0;
  // Returns the size of a slab, or 0 if the store has none. With slabs, each slab is a slot and an
  // extent of its own, and a lease's DEVICE memory grows and shrinks by whole slabs. Without, a
  // grant of DEVICE is one extent whose pages are allocated when they are touched. It then has room
  // for all that the lease may grow to.
  virtual int64_t slab_bytes() const { return 0; }
  // Returns the UUID of the GPU (CudaDeviceUuid), or "" if this is host memory.
  virtual std::string gpu_uuid() const { return ""; }
  // Returns whether an extent's descriptor is memory. If false, it stands for a slab that the
  // server only counts and that the client allocates.
  virtual bool shares_memory() const { return true; }
  // Returns the bytes of all grants that were made and not yet destroyed.
  virtual int64_t granted_bytes() const = 0;

  // Makes `num_slots` (>= 0) zero-filled slots of `slot_bytes` (> 0); the product fits int64_t.
  // RESOURCE_EXHAUSTED: beyond the capacity, or the machine has no more, with the numbers.
  virtual absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) = 0;
  // Makes Make begin nothing that takes long from now on; it may then return CANCELLED. Any thread.
  virtual void Stop() {}
  // Gives the bytes back to the machine. When it returns they are free.
  virtual void Destroy(TierGrant grant) = 0;
};

}  // namespace gemini::server
