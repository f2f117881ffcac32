// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/shard_plan.h"

#include <malloc.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/torch/model/training_session.h"
#include "gemini/byte_size.h"
#include "gemini/device_shortage.h"
#include "gemini/system/status_macros.h"
#include "trainer/forecast/floor_of_rank.h"
#include "trainer/forecast/round_of_run.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kLeastChunkBytes = 16 * kKiB;
constexpr double kWorthwhile = 1.02;

// Returns what a step of this rank is known to need of DEVICE, and sets `why` where nothing is
// known of its operators.
DeviceNeed FloorOf(const RunConfig& config, const GatheredModel& model, const RankLayout& layout,
                   int64_t rank, absl::Status& why) {
  NamedTrace step;
  // In the vertical schedule activations may leave DEVICE.
  if (config.micro_batch_schedule != "vertical") {
    absl::StatusOr<NamedTrace> made = TraceStepOfRank(model.spec(), RoundOf(config), layout, rank);
    why = made.status();
    if (made.ok()) step = *std::move(made);
  }
  return FindFloorOfRank(model, config.element(), step);
}

std::vector<TensorSpec> TensorsOf(const GatheredModel& model) {
  std::vector<TensorSpec> tensors;
  for (const auto& parameter : model.named_parameters()) {
    const torch::Tensor& tensor = parameter.value();
    tensors.push_back({parameter.key(), static_cast<int64_t>(tensor.nbytes()),
                       tensor.requires_grad() ? TensorGroup::kTrainable : TensorGroup::kFrozen});
  }
  return tensors;
}

}  // namespace

absl::StatusOr<ShardPlan> PlanShards(const RunConfig& config, const GatheredModel& model,
                                     const RankLayout& layout, int64_t rank,
                                     int64_t available_bytes, int64_t context_bytes) {
  ShardPlan plan;
  const DeviceNeed least = FloorOf(config, model, layout, rank, plan.floor);
  ::malloc_trim(0);  // Before HOST is asked for.
  const int64_t device_bytes = config.device_memory - context_bytes;
  if (least.bytes() > device_bytes) return DeviceTooSmall(least, device_bytes);
  const std::vector<TensorSpec> tensors = TensorsOf(model);
  BoundaryActivations between = BoundaryActivationsOf(
      config, model.spec().num_blocks, model.spec().ElementsBetweenBlocks(config.sequence));
  for (int64_t& size_bytes : between.tensor_bytes) size_bytes /= layout.parts_of_hidden();
  const auto plan_with = [&](int64_t chunk_bytes) {
    return PlanMemory(config, tensors, between, chunk_bytes, available_bytes);
  };
  if (config.chunk_size != kAutoBytes) {
    GEMINI_ASSIGN_OR_RETURN(plan.memory, plan_with(config.chunk_size));
    return plan;
  }
  // A tensor that fills chunks shares none of them, so the last one is half empty, and a rank has
  // many pieces, of which chunks of 64 KiB would waste a twentieth with eight ranks: takes the
  // largest chunks with which HOST is about as small as with any.
  std::vector<MemoryPlan> plans;
  const int64_t most = client::hooks::ChooseChunkBytes(config.device_memory, model);
  for (int64_t bytes = kLeastChunkBytes; bytes <= most; bytes *= 2) {
    GEMINI_ASSIGN_OR_RETURN(plans.emplace_back(), plan_with(bytes));
  }
  const auto host = [](const MemoryPlan& one) { return one.bytes[Tier::kHost]; };
  const auto fewest = static_cast<double>(host(*std::ranges::min_element(plans, {}, host)));
  while (static_cast<double>(host(plans.back())) > kWorthwhile * fewest) plans.pop_back();
  plan.memory = plans.back();
  return plan;
}

}  // namespace gemini::trainer
