// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/memory_plan.h"

#include <algorithm>
#include <string>

#include "gemini/byte_size.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

// Of DEVICE, what boundary activations may take. The rest is for parameters, and for what one block
// computes with; a larger part would save copies of activations and cost those of parameters.
constexpr int64_t kActivationPart = 4;

// How many chunks of HOST hold what belongs to a chunk of trained parameters.
int64_t ChunksInHost(const RunConfig& config) {
  const StateFormat format = config.format();
  return static_cast<int64_t>(TrainableKinds(format).size()) -
         (config.states_on_nvme() ? NumStateChunks(format) : 0);
}

}  // namespace

int64_t DeviceMemory(const RunConfig& config, int64_t num_trained, int64_t num_frozen,
                     const HostMemory& memory) {
  if (config.device_memory != kAutoBytes) return config.device_memory;
  int64_t host_bytes = config.host_memory;
  if (host_bytes == kAutoBytes) {
    // No more than `available_bytes` of them have room, and the product stays a number.
    num_trained = std::min(num_trained, memory.available_bytes);
    num_frozen = std::min(num_frozen, memory.available_bytes);
    host_bytes = (num_trained * ChunksInHost(config) + num_frozen) * ElementBytes(config.element());
    if (!config.nvme.empty()) host_bytes = std::min(host_bytes, memory.available_bytes / 2);
  }
  return DefaultDeviceBytes(memory, host_bytes);
}

BoundaryActivations BoundaryActivationsOf(const RunConfig& config, int64_t num_blocks,
                                          absl::Span<const int64_t> elements_of_row) {
  BoundaryActivations activations;
  if (config.micro_batch_schedule != "vertical") return activations;
  activations.count = num_blocks * config.accumulate;
  for (const int64_t elements : elements_of_row) {
    activations.tensor_bytes.push_back(config.batch * elements * ElementBytes(config.element()));
  }
  return activations;
}

absl::StatusOr<MemoryPlan> PlanMemory(const RunConfig& config, absl::Span<const TensorSpec> tensors,
                                      const BoundaryActivations& activations, int64_t chunk_bytes,
                                      int64_t available_bytes) {
  MemoryPlan plan;
  plan.chunk_bytes = chunk_bytes;
  plan.bytes[Tier::kDevice] = config.device_memory;
  plan.kept_activation_bytes = plan.bytes[Tier::kDevice] / kActivationPart;
  const int64_t kept = plan.kept_activation_bytes / std::max<int64_t>(activations.size_bytes(), 1);
  if (activations.count > kept) {
    int64_t rounded_bytes = 0;
    for (const int64_t size_bytes : activations.tensor_bytes) {
      rounded_bytes += RoundUp(size_bytes, chunk_bytes);
    }
    plan.host_activation_bytes =
        (activations.count - kept) * rounded_bytes + SpareSlots({}) * chunk_bytes;
  }
  for (const NvmeDirectory& directory : config.nvme) {
    plan.bytes[Tier::kNvme] += directory.capacity_bytes;
  }
  plan.bytes[Tier::kHost] = config.host_memory;
  if (config.host_memory == kAutoBytes) {
    const StateFormat format = config.format();
    GEMINI_ASSIGN_OR_RETURN(const Layout layout, Layout::Pack(tensors, chunk_bytes, format));
    int64_t chunks = SpareSlots(format, config.states_on_nvme());
    for (int64_t i = 0; i < layout.num_bundles(); ++i) {
      chunks += layout.group(BundleId(i)) == TensorGroup::kTrainable ? ChunksInHost(config) : 1;
    }
    plan.bytes[Tier::kHost] = chunks * chunk_bytes;
    if (!config.nvme.empty()) {
      plan.bytes[Tier::kHost] = std::min(plan.bytes[Tier::kHost], available_bytes / 2);
    }
    plan.bytes[Tier::kHost] += plan.host_activation_bytes;
  }
  return plan;
}

}  // namespace gemini::trainer
