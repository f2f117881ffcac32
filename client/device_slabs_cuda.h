// SPDX-License-Identifier: Apache-2.0
// DEVICE slabs by CUDA's virtual memory API.
// Freed:  the memory of a slab, when neither side has its descriptor, its import or a mapping. Here only mappings are kept.
// Thread: as DeviceSlabs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device_slabs.h"
#include "gemini/cuda_driver.h"

namespace gemini::client {

class DeviceSlabsCuda : public DeviceSlabs {
 public:
  // Reserves addresses for `num_slabs` (> 0) slabs of `slab_bytes`, a multiple of the GPU's granularity. `driver`
  // outlives it; `ordinal`: as the CUDA runtime counts GPUs. RESOURCE_EXHAUSTED: no such range is free.
  static absl::StatusOr<std::unique_ptr<DeviceSlabsCuda>> Reserve(const CudaDriver& driver,
                                                                  int ordinal, int64_t slab_bytes,
                                                                  int64_t num_slabs);
  DeviceSlabsCuda(const DeviceSlabsCuda&) = delete;
  DeviceSlabsCuda& operator=(const DeviceSlabsCuda&) = delete;
  // As Keep(0); the addresses are free then.
  ~DeviceSlabsCuda() override;

  absl::Status Map(int fd) override;
  absl::Status Keep(int64_t num_slabs) override;
  std::byte* data() const override { return reinterpret_cast<std::byte*>(begin_); }
  int64_t num_mapped() const override { return num_mapped_; }

 private:
  DeviceSlabsCuda(const CudaDriver& driver, int ordinal, int64_t slab_bytes, int64_t num_slabs)
      : driver_(driver), ordinal_(ordinal), slab_bytes_(slab_bytes), num_slabs_(num_slabs) {}
  int64_t reserved_bytes() const { return num_slabs_ * slab_bytes_; }
  CUdeviceptr AddressOf(int64_t slab) const {
    return begin_ + static_cast<CUdeviceptr>(slab * slab_bytes_);
  }

  const CudaDriver& driver_;
  const int ordinal_;
  const int64_t slab_bytes_;
  const int64_t num_slabs_;
  CUdeviceptr begin_ = 0;  // 0: not reserved.
  int64_t num_mapped_ = 0;
};

}  // namespace gemini::client
