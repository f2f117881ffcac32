// SPDX-License-Identifier: Apache-2.0
// The client's side of DEVICE slabs on a GPU: addresses reserved once, and the slabs that the server exported mapped to
// them one behind the other. So an address stays a slot's, however many slabs come and go behind it.
// Freed:  the memory of a slab, when neither side has its descriptor, its import or a mapping. Here only mappings are kept.
// Thread: one at a time; data() and reserved_bytes(): any.
// Units:  bytes. Sizes are multiples of slab_bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/cuda_driver.h"

namespace gemini::client {

class DeviceSlabsCuda {
 public:
  // Reserves addresses for `num_slabs` (> 0) slabs of `slab_bytes`, a multiple of the GPU's granularity. `driver`
  // outlives it; `ordinal`: as the CUDA runtime counts GPUs. RESOURCE_EXHAUSTED: no such range is free.
  static absl::StatusOr<std::unique_ptr<DeviceSlabsCuda>> Reserve(const CudaDriver& driver,
                                                                  int ordinal, int64_t slab_bytes,
                                                                  int64_t num_slabs);
  DeviceSlabsCuda(const DeviceSlabsCuda&) = delete;
  DeviceSlabsCuda& operator=(const DeviceSlabsCuda&) = delete;
  // As Keep(0); the addresses are free then.
  ~DeviceSlabsCuda();

  // Maps the exported slab behind those that are mapped. The descriptor stays the caller's, who closes it, or the memory
  // lives as long. RESOURCE_EXHAUSTED: all addresses are in use. Others: the driver's refusal; nothing is mapped then.
  absl::Status Map(int fd);
  // Unmaps all but the first `num_slabs`. Nothing that the GPU has to do may still use them: CUDA does not wait for that.
  // On an error those that could not be unmapped stay.
  absl::Status Keep(int64_t num_slabs);

  std::byte* data() const { return reinterpret_cast<std::byte*>(begin_); }
  int64_t reserved_bytes() const { return num_slabs_ * slab_bytes_; }
  int64_t mapped_bytes() const { return mapped_slabs_ * slab_bytes_; }

 private:
  DeviceSlabsCuda(const CudaDriver& driver, int ordinal, int64_t slab_bytes, int64_t num_slabs)
      : driver_(driver), ordinal_(ordinal), slab_bytes_(slab_bytes), num_slabs_(num_slabs) {}
  CUdeviceptr AddressOf(int64_t slab) const {
    return begin_ + static_cast<CUdeviceptr>(slab * slab_bytes_);
  }

  const CudaDriver& driver_;
  const int ordinal_;
  const int64_t slab_bytes_;
  const int64_t num_slabs_;
  CUdeviceptr begin_ = 0;  // 0: not reserved.
  int64_t mapped_slabs_ = 0;
};

}  // namespace gemini::client
