// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/gpu_device_cuda.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/nvml.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"
#include "server/tiers/gpu_device.h"
#include "server/tiers/tier_store_counted.h"
#include "server/tiers/tier_store_cuda.h"

namespace gemini::server {
namespace {

absl::StatusOr<int64_t> ChooseCapacity(int ordinal, std::optional<int64_t> asked_bytes,
                                       const absl::StatusOr<GpuMemory>& memory) {
  if (!memory.ok()) {
    if (asked_bytes.has_value()) return *asked_bytes;
    return absl::UnavailableError(absl::StrCat("what is free on GPU ", ordinal, " is not known (",
                                               memory.status().message(),
                                               "): pass --device-memory"));
  }
  if (!asked_bytes.has_value()) return memory->free_bytes / 16 * 15;
  if (*asked_bytes > memory->total_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("device-memory ", FormatByteSize(*asked_bytes), ": GPU ", ordinal, " has ",
                     FormatByteSize(memory->total_bytes), ", and ",
                     FormatByteSize(memory->free_bytes), " of it free: ask for less"));
  }
  if (*asked_bytes > memory->free_bytes) {
    ServerLog().warn(
        "device-memory {}: only {} of GPU {} is free now, and jobs are refused what others keep: "
        "see in nvidia-smi what uses it",
        FormatByteSize(*asked_bytes), FormatByteSize(memory->free_bytes), ordinal);
  }
  return *asked_bytes;
}

// Bytes a second that the GPU's memory does by its clock, twice a cycle, and its width; 0: what the
// driver says of these is nothing that a GPU has, as below some hypervisors.
double MemoryRate(const CudaDriver& driver, int ordinal) {
  constexpr double kLeast = 1e10;
  CUdevice device = 0;
  int clock_khz = 0, width_bits = 0;
  if (driver.DeviceGet(&device, ordinal) != CUDA_SUCCESS ||
      driver.DeviceGetAttribute(&clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device) !=
          CUDA_SUCCESS ||
      driver.DeviceGetAttribute(&width_bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device) !=
          CUDA_SUCCESS) {
    return 0;
  }
  const double rate = 2e3 * clock_khz * width_bits / 8;
  return rate >= kLeast ? rate : 0;
}

}  // namespace

absl::Status UseGpuOf(const CudaDriver& driver, int ordinal, std::optional<int64_t> capacity_bytes,
                      ServerOptions& options) {
  GEMINI_ASSIGN_OR_RETURN(const std::string uuid, CudaDeviceUuid(driver, ordinal));
  GEMINI_ASSIGN_OR_RETURN(const int64_t granularity_bytes, CudaGranularityBytes(driver, ordinal));
  GEMINI_ASSIGN_OR_RETURN(const int64_t chosen_bytes,
                          ChooseCapacity(ordinal, capacity_bytes, ReadGpuMemory(uuid)));
  const int64_t slab_bytes = CudaSlabBytes(chosen_bytes, granularity_bytes);
  if (chosen_bytes < slab_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(FormatByteSize(chosen_bytes), " of GPU ", ordinal, " for DEVICE: at least ",
                     FormatByteSize(slab_bytes), ", the smallest part that a job can have"));
  }
  ServerLog().info("DEVICE is GPU {} ({}), in slabs of {}", ordinal, uuid,
                   FormatByteSize(slab_bytes));
  // Leases are of whole slabs: what is left over would be nobody's.
  options.capacity_bytes[Tier::kDevice] = chosen_bytes / slab_bytes * slab_bytes;
  options.gpu_memory_rate = MemoryRate(driver, ordinal);
  options.make_device = [&driver, ordinal, slab_bytes,
                         uuid](int64_t store_bytes) -> absl::StatusOr<std::unique_ptr<TierStore>> {
    absl::StatusOr<std::unique_ptr<TierStore>> store =
        MakeCudaTierStore(driver, ordinal, store_bytes, slab_bytes);
    if (!absl::IsFailedPrecondition(store.status())) return store;
    ServerLog().warn(
        "{}: jobs make their part of DEVICE themselves, and what they are granted is counted here; "
        "it is theirs until they end, and nobody holds them to it",
        std::string(store.status().message()));
    return MakeCountedTierStore(uuid, store_bytes, slab_bytes);
  };
  return absl::OkStatus();
}

absl::Status UseGpu(int ordinal, std::optional<int64_t> capacity_bytes, ServerOptions& options) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Find();
  if (!driver.ok()) {
    return absl::Status(driver.status().code(),
                        absl::StrCat("--device cuda:", ordinal, ": ", driver.status().message()));
  }
  return UseGpuOf(**driver, ordinal, capacity_bytes, options);
}

}  // namespace gemini::server
