// SPDX-License-Identifier: Apache-2.0
// Implements DeviceSlabs by CUDA's virtual memory API.
// Freed: a slab's memory is freed when neither the server nor this process has its descriptor, its
// import or a mapping. This class keeps only mappings.
// Thread: as DeviceSlabs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/device_slabs.h"
#include "gemini/system/cuda_driver.h"

namespace gemini::client {

class DeviceSlabsCuda : public DeviceSlabs {
 public:
  // Reserves addresses for the offered slabs, which are of a multiple of the GPU's granularity.
  // `driver` outlives it; `ordinal` is as the CUDA runtime counts GPUs. FAILED_PRECONDITION: the
  // offer is for another GPU, whose memory this one would reach over their link, if at all.
  // NOT_FOUND: there is no such GPU. RESOURCE_EXHAUSTED: no such address range is free.
  static absl::StatusOr<std::unique_ptr<DeviceSlabsCuda>> Reserve(const CudaDriver& driver,
                                                                  int ordinal,
                                                                  DeviceSlabsOffer offer);
  DeviceSlabsCuda(const DeviceSlabsCuda&) = delete;
  DeviceSlabsCuda& operator=(const DeviceSlabsCuda&) = delete;
  // Unmaps all slabs, as Keep(0), and frees the addresses.
  ~DeviceSlabsCuda() override;

  absl::Status Map(int fd) override;
  absl::Status Keep(int64_t num_slabs) override;
  std::byte* data() const override { return reinterpret_cast<std::byte*>(begin_); }
  int64_t num_mapped() const override { return num_mapped_; }

 private:
  DeviceSlabsCuda(const CudaDriver& driver, int ordinal, DeviceSlabsOffer offer)
      : driver_(driver), ordinal_(ordinal), offer_(std::move(offer)) {}
  int64_t reserved_bytes() const { return offer_.num_slabs * offer_.slab_bytes; }
  CUdeviceptr AddressOf(int64_t slab) const {
    return begin_ + static_cast<CUdeviceptr>(slab * offer_.slab_bytes);
  }
  // Returns the memory of the slab that the descriptor is, or stands for; the caller releases it.
  absl::StatusOr<CUmemGenericAllocationHandle> Take(int fd) const;

  const CudaDriver& driver_;
  const int ordinal_;
  const DeviceSlabsOffer offer_;
  CUdeviceptr begin_ = 0;  // 0 if not reserved.
  int64_t num_mapped_ = 0;
};

}  // namespace gemini::client
