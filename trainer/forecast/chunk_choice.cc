// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/chunk_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/policy_options.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/chunk_size_search.h"
#include "policies/trace/range_trace.h"
#include "trainer/forecast/device_floor.h"
#include "trainer/forecast/round_of_run.h"
#include "trainer/forecast/traced_step.h"

namespace gemini::trainer {
namespace {

using policies::ChunkSizeSearchInputs;
using policies::TriedChunkSize;

constexpr int64_t kLeastChunkBytes = 64 * kKiB;
// Half a second of planning for all sizes together (docs/benchmarks.md says what a plan takes). A
// model of 1.3e9 parameters has so many chunks of 1 MiB.
constexpr int64_t kMostBundles = 5'000;
// A trace of so many operators is made and planned in about a second: 40 micro-batches of a model
// of 80 blocks.
constexpr int64_t kMostForetoldOperators = 100'000;

std::string Describe(const TriedChunkSize& tried) {
  if (!tried.status.ok()) return absl::StrCat(FormatByteSize(tried.chunk_bytes), " does not fit");
  return absl::StrFormat("%s %.3g s and %s", FormatByteSize(tried.chunk_bytes),
                         static_cast<double>(tried.prediction.round_ns) * 1e-9,
                         FormatByteSize(tried.host_bytes));
}

absl::StatusOr<ChunkChoice> Search(const ChunkChoiceInputs& in, const NamedTrace& step) {
  ChunkSizeSearchInputs search = {.trace = step.trace,
                                  .budget_bytes = {},
                                  .costs = in.links,
                                  .least_chunk_bytes = kLeastChunkBytes,
                                  .most_chunk_bytes = in.most_chunk_bytes,
                                  .max_bundles = kMostBundles};
  search.budget_bytes[Tier::kDevice] = in.device_bytes - in.context_bytes;
  search.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
  if (in.config.device_bandwidth > 0) {
    search.costs.host_to_device = static_cast<double>(in.config.device_bandwidth);
    search.costs.device_to_host = search.costs.host_to_device;
  }
  GEMINI_ASSIGN_OR_RETURN(search.policy.kind, ParsePolicyKind(in.config.policy));
  search.policy.param_fraction = in.config.param_fraction;
  search.policy.optimizer_fraction = in.config.optimizer_fraction;
  GEMINI_ASSIGN_OR_RETURN(const policies::ChunkSizeChoice found, policies::SearchChunkSize(search));
  std::string others;
  int64_t host_bytes = 0;
  ChunkChoice choice = {.chunk_bytes = found.plan.chunk_bytes,
                        .reason = "",
                        .device_floor_bytes = found.plan.prediction.device_floor_bytes,
                        .floor = std::nullopt};
  for (const TriedChunkSize& tried : found.tried) {
    if (tried.chunk_bytes == choice.chunk_bytes) {
      host_bytes = tried.host_bytes;
      continue;
    }
    if (tried.num_bundles > kMostBundles) continue;  // Nothing to tell of those below.
    absl::StrAppend(&others, others.empty() ? "; with " : ", ", Describe(tried));
  }
  choice.reason = absl::StrFormat(
      "chunks of %s: a step is predicted to take %.3g s, %.3g s of it waiting, and %s of HOST%s",
      FormatByteSize(choice.chunk_bytes),
      static_cast<double>(found.plan.prediction.round_ns) * 1e-9,
      static_cast<double>(found.plan.prediction.round_ns - found.plan.prediction.compute_ns) * 1e-9,
      FormatByteSize(host_bytes), others);
  return choice;
}

// Without a prediction that chooses: the budget does.
ChunkChoice ByBudget(const ChunkChoiceInputs& in, const absl::Status& why) {
  return {.chunk_bytes = in.most_chunk_bytes,
          .reason = absl::StrCat(
              "chunks of ", FormatByteSize(in.most_chunk_bytes),
              ", by the DEVICE budget alone, for no step can be predicted: ", why.message()),
          .device_floor_bytes = 0,
          .floor = std::nullopt};
}

std::string AsAskedFor(int64_t chunk_bytes) {
  return absl::StrCat("chunks of ", FormatByteSize(chunk_bytes), ", as asked for");
}

// Returns what the largest operator needs, with the GPU's context.
std::optional<DeviceNeed> FloorOf(const ChunkChoiceInputs& in, const NamedTrace& step,
                                  int64_t chunk_bytes) {
  const absl::StatusOr<policies::RangeTrace> packed = policies::PackTrace(step.trace, chunk_bytes);
  if (!packed.ok()) return std::nullopt;
  DeviceNeed floor = FindDeviceFloor(*packed, step);
  floor.non_model_bytes += in.context_bytes;
  return floor;
}

RoundShape ShapeOf(const ChunkChoiceInputs& in) {
  RoundShape round = RoundOf(in.config);
  round.vocabulary_blocks = VocabularyBlocks(in.model, in.config, in.device_bytes);
  return round;
}

absl::StatusOr<NamedTrace> StepOf(const ChunkChoiceInputs& in) {
  RoundShape round = ShapeOf(in);
  round.micro_batches = std::min(round.micro_batches, kMostMicroBatches);
  return TraceStep(in.model, round, in.compute.value_or(ComputeRate()));
}

// Adds a round and the room that its routers may need, unless it cannot be foretold.
void Foretell(const ModelSpec& model, const RoundShape& round, absl::StatusOr<NamedTrace> made,
              std::vector<Trace>& rounds) {
  if (!made.ok()) return;
  absl::StatusOr<std::vector<int64_t>> most_bytes = MostNonModelBytes(model, round);
  if (most_bytes.ok() && most_bytes->size() == made->trace.operators.size()) {
    made->trace.room_bytes = *std::move(most_bytes);
  }
  rounds.push_back(std::move(made->trace));
}

// Returns what a run begins with. `step` has kMostMicroBatches at most.
std::vector<Trace> RoundsOf(const ChunkChoiceInputs& in, NamedTrace step) {
  RoundShape round = ShapeOf(in);
  // Nobody makes plans, or knows the times that a plan is made of.
  if (in.config.policy == "online" || !in.compute.ok()) return {};
  // What a GPU's libraries and allocator take beside the tensors is not in the count of memory.
  if (!round.on_cpu) return {};
  // The vertical schedule takes the operators in another order than the dry run does, which is of
  // one micro-batch there, and its activations leave DEVICE.
  if (in.config.micro_batch_schedule != "horizontal") return {};
  // A step whose gradients overflow, while fp16's loss scale is searched for, ends in no update, as
  // no plan foretells.
  if (round.element == ElementType::kFp16) return {};
  const int64_t part =
      step.trace.num_positions() / std::min(round.micro_batches, kMostMicroBatches);
  if (part * round.micro_batches > kMostForetoldOperators) return {};
  std::vector<Trace> rounds;
  Foretell(in.model, round,
           round.micro_batches <= kMostMicroBatches ? std::move(step)
                                                    : TraceStep(in.model, round, *in.compute),
           rounds);
  const std::optional<ExpertsSpec>& experts = in.model.experts;
  const bool is_routed =
      experts.has_value() && in.config.routes_experts(experts->count, experts->chosen);
  if (in.config.eval_data.empty() || is_routed) return rounds;
  round.train = false;
  round.micro_batches = 1;
  Foretell(in.model, round, TraceStep(in.model, round, *in.compute), rounds);
  return rounds;
}

ChunkChoice Choose(const ChunkChoiceInputs& in, const NamedTrace& step) {
  if (in.config.chunk_size != kAutoBytes) {
    return {.chunk_bytes = in.config.chunk_size,
            .reason = AsAskedFor(in.config.chunk_size),
            .device_floor_bytes = 0,
            .floor = FloorOf(in, step, in.config.chunk_size)};
  }
  absl::StatusOr<ChunkChoice> found =
      in.compute.ok() ? Search(in, step) : absl::StatusOr<ChunkChoice>(in.compute.status());
  if (!found.ok()) found = ByBudget(in, found.status());
  found->floor = FloorOf(in, step, found->chunk_bytes);
  // Smaller chunks have a lower floor, for they carry less that nobody uses.
  while (found->floor.has_value() && found->floor->bytes() > in.device_bytes &&
         found->chunk_bytes > kLeastChunkBytes) {
    found->chunk_bytes /= 2;
    found->floor = FloorOf(in, step, found->chunk_bytes);
    found->reason = absl::StrCat("chunks of ", FormatByteSize(found->chunk_bytes),
                                 ", for an operator needs more DEVICE in larger ones");
  }
  return *std::move(found);
}

}  // namespace

ChunkChoice ChooseChunkSize(const ChunkChoiceInputs& in) {
  absl::StatusOr<NamedTrace> step = StepOf(in);
  if (step.ok()) {
    ChunkChoice choice = Choose(in, *step);
    choice.rounds = RoundsOf(in, *std::move(step));
    return choice;
  }
  ChunkChoice choice = ByBudget(in, step.status());
  if (in.config.chunk_size != kAutoBytes) {
    choice.chunk_bytes = in.config.chunk_size;
    choice.reason = AsAskedFor(choice.chunk_bytes);
  }
  return choice;
}

absl::Status CheckDeviceFloor(const ChunkChoice& choice, int64_t device_bytes) {
  if (!choice.floor.has_value() || choice.floor->bytes() <= device_bytes) return absl::OkStatus();
  return DeviceTooSmall(*choice.floor, device_bytes);
}

}  // namespace gemini::trainer
