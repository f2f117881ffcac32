// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/rank_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gemini/cost_model.h"
#include "gemini/device_shortage.h"
#include "gemini/policy_options.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"
#include "trainer/forecast/round_of_run.h"
#include "trainer/forecast/shard_plan.h"
#include "trainer/forecast/traced_step.h"
#include "trainer/models/batch.h"
#include "trainer/parallel/communicator_dry.h"
#include "trainer/parallel/parameter_store_ranks.h"
#include "trainer/parallel/part_of_run.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_losses.h"

namespace gemini::trainer {
namespace {

using policies::PlayedExchange;
using policies::RankAction;

// What of an exchange is waited for, and what a rank works for it.
struct ExchangeCost {
  double latency_seconds = 0;
  double work_seconds = 0;
};

// As CommunicatorHost exchanges on one machine: each rank copies what others have for it.
ExchangeCost CostOf(const DryExchange& exchange, const RankStepRates& rates) {
  const auto others = static_cast<double>(exchange.group->size() - 1);
  const double latency = rates.link.latency_seconds;
  const double copied = static_cast<double>(exchange.part_bytes) / rates.link.bytes_per_second;
  const double added = static_cast<double>(exchange.part_bytes) / rates.sum_bytes_per_second;
  switch (exchange.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return {others * latency, others * copied};
    case CollectiveKind::kReduceScatter:
      return {others * latency, others * (copied + added)};
    case CollectiveKind::kAllReduce:
      return {2 * others * latency, others * (2 * copied + added)};
    case CollectiveKind::kBroadcast:
      return {static_cast<double>(std::bit_width(static_cast<uint64_t>(others))) * latency, copied};
    case CollectiveKind::kShift:
    case CollectiveKind::kReceive:
      return {latency, copied};
    case CollectiveKind::kSend:
      return {};
  }
  return {};
}

// Writes down what a rank does.
class ActionWriter final : public DryListener {
 public:
  explicit ActionWriter(const RankStepRates& rates) : rates_(rates) {}

  // `computed_ns` is that of TraceRun, and null outside it.
  void set_clock(std::function<int64_t()> computed_ns) {
    Catch();
    computed_ns_ = std::move(computed_ns);
    seen_ns_ = 0;
  }
  void Compute(double seconds) {
    Catch();
    made_.actions.push_back({.kind = RankAction::Kind::kCompute, .seconds = seconds});
  }
  // The same of work that moves so many bytes.
  void Move(double bytes) { Compute(bytes / rates_.compute.memory_bytes_per_second); }

  void Issued(const DryExchange& exchange) override {
    Catch();
    const ExchangeCost cost = CostOf(exchange, rates_);
    const bool is_message =
        exchange.kind == CollectiveKind::kSend || exchange.kind == CollectiveKind::kReceive;
    PlayedExchange played = {
        .kind = exchange.kind == CollectiveKind::kSend      ? PlayedExchange::Kind::kSend
                : exchange.kind == CollectiveKind::kReceive ? PlayedExchange::Kind::kReceive
                                                            : PlayedExchange::Kind::kCollective,
        .ranks = exchange.group->ranks,
        .group = exchange.group->id,
        .tag = exchange.tag,
        .latency_seconds = cost.latency_seconds,
        .work_seconds = cost.work_seconds,
        .site = exchange.site};
    if (is_message) played.ranks = {exchange.group->ranks[static_cast<size_t>(exchange.place)]};
    made_.exchanges.push_back(std::move(played));
    made_.actions.push_back(
        {.kind = RankAction::Kind::kBegin, .exchange = static_cast<int32_t>(exchange.number)});
  }
  void Awaited(int64_t number) override {
    // What was sent is taken when it has arrived (PipelineStage), and not waited for.
    if (made_.exchanges[static_cast<size_t>(number)].kind == PlayedExchange::Kind::kSend) return;
    Catch();
    made_.actions.push_back(
        {.kind = RankAction::Kind::kAwait, .exchange = static_cast<int32_t>(number)});
    const PlayedExchange& exchange = made_.exchanges[static_cast<size_t>(number)];
    if (computed_ns_ == nullptr) return;
    waits_.push_back(
        {seen_ns_, std::llround((exchange.latency_seconds + exchange.work_seconds) * 1e9)});
  }

  // Puts work in front of all that is noted.
  void Begin(double seconds) {
    made_.actions.insert(made_.actions.begin(),
                         {.kind = RankAction::Kind::kCompute, .seconds = seconds});
  }
  const policies::RankActions& made() const { return made_; }
  // Returns how long all of it takes as if the other ranks had come.
  double SecondsByItself() const {
    double seconds = 0;
    for (const RankAction& action : made_.actions) seconds += action.seconds;
    for (const PlayedExchange& exchange : made_.exchanges) {
      seconds += exchange.latency_seconds + exchange.work_seconds;
    }
    return seconds;
  }
  // What a rank waits for exchanges, as if the others had come: behind so many nanoseconds of
  // kernels, how many more.
  struct Wait {
    int64_t behind_ns = 0;
    int64_t wait_ns = 0;
  };
  const std::vector<Wait>& waits() const { return waits_; }

 private:
  // Notes the kernels that ran since the last time.
  void Catch() {
    if (computed_ns_ == nullptr) return;
    const int64_t now_ns = computed_ns_();
    if (now_ns == seen_ns_) return;
    made_.actions.push_back({.kind = RankAction::Kind::kCompute,
                             .seconds = static_cast<double>(now_ns - seen_ns_) / 1e9});
    seen_ns_ = now_ns;
  }

  const RankStepRates& rates_;
  std::function<int64_t()> computed_ns_;
  int64_t seen_ns_ = 0;
  policies::RankActions made_;
  std::vector<Wait> waits_;
};

// Adds to the intervals of a trace what the rank waits for exchanges in them, which those of a
// round that runs have, too.
void AddWaits(absl::Span<const ActionWriter::Wait> waits, Trace& trace) {
  int64_t end_ns = 0;
  auto next = waits.begin();
  for (TracedOperator& at : trace.operators) {
    end_ns += at.compute_ns;
    for (; next != waits.end() && next->behind_ns <= end_ns; ++next) {
      at.compute_ns += next->wait_ns;
    }
  }
}

// Runs the micro-batches of a step as trainer/run/training_loop.cc does.
absl::Status RunMicroBatches(const PartOfRun& part, const RunConfig& config,
                             const RoundShape& round) {
  const ModelSpec& spec = part.model->spec();
  if (part.stage != nullptr) {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < config.accumulate; ++i) batches.push_back(DryBatchOf(spec, round));
    return part.stage
        ->Run({batches, LossFactors(), [](int64_t) { return DropoutDraw(); },
               [](int64_t, double) { return absl::OkStatus(); }})
        .status();
  }
  for (int64_t i = 0; i < config.accumulate; ++i) {
    part.model->set_last_micro_batch(i + 1 == config.accumulate);
    const Batch batch = DryBatchOf(spec, round);
    part.model->Losses(batch, LossFactors()).Backward(LossFactors());
  }
  return absl::OkStatus();
}

// Exchanges what ranks tell each other between a step's last backward and its update. What the
// others would say is not known in a dry run: the answers mean nothing.
void ExchangeForUpdate(const PartOfRun& part, const RunConfig& config, const RankLayout& layout,
                       Communicator& communicator, const std::function<void()>& find_norm) {
  GatherLosses(RankAgreement(communicator), {}).status().IgnoreError();
  find_norm();
  RankStepExchange exchange = StepExchangeOf(*part.model, communicator, layout);
  exchange.AgreeOnNorm(absl::CancelledError("a dry run")).status().IgnoreError();
  if (!IsLayerWise(config.optimizer_kind())) return;
  std::vector<client::TrustSquares> squares(part.model->parameters().size());
  exchange.CompleteTrustSquares(absl::MakeSpan(squares)).IgnoreError();
}

// Returns what a plan of the step foretells.
absl::StatusOr<Prediction> PredictionOf(const Trace& trace, const RunConfig& config,
                                        const MemoryPlan& memory, const RankStepRates& rates) {
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace packed,
                          policies::PackTrace(trace, memory.chunk_bytes));
  policies::PlanInputs inputs = {
      .trace = packed, .budget_bytes = memory.bytes, .costs = {}, .policy = {}};
  inputs.costs.host_to_device = inputs.costs.device_to_host = rates.copy_bytes_per_second;
  if (config.device_bandwidth > 0) {
    inputs.costs.host_to_device = static_cast<double>(config.device_bandwidth);
    inputs.costs.device_to_host = inputs.costs.host_to_device;
  }
  inputs.costs.update_elements_per_second = rates.update_elements_per_second;
  inputs.costs.device_update_elements_per_second = rates.device_update_elements_per_second;
  GEMINI_ASSIGN_OR_RETURN(inputs.policy.kind, ParsePolicyKind(config.policy));
  inputs.policy.param_fraction = config.param_fraction;
  inputs.policy.optimizer_fraction = config.optimizer_fraction;
  const absl::StatusOr<Plan> plan = policies::MakePlan(inputs);
  if (absl::IsResourceExhausted(plan.status())) {  // The run then places on demand.
    return absl::UnimplementedError(
        absl::StrCat("no dry run of ranks has a step without a plan: ", plan.status().message()));
  }
  GEMINI_RETURN_IF_ERROR(plan.status());
  return plan->prediction;
}

// Refuses what a dry run has no model of, or takes too long for.
absl::Status CheckDryRun(const RunConfig& config, const RankLayout& layout) {
  constexpr int64_t kMostMicroBatches = 4096;  // Of all ranks: each is some thousand operators.
  GEMINI_ASSIGN_OR_RETURN(const policies::PipelineSchedule schedule,
                          policies::ParsePipelineSchedule(config.pipeline_schedule));
  std::string why;
  if (config.micro_batch_schedule == "vertical") {
    why = "--micro-batch-schedule vertical, whose activations leave DEVICE";
  } else if (policies::SplitsBackward(schedule)) {
    why = absl::StrCat("--pipeline-schedule ", config.pipeline_schedule, ", which no run has");
  } else if (config.device_bandwidth > 0) {
    why = "--device-bandwidth, which holds moves back";
  } else if (config.gpu().has_value()) {
    why = absl::StrCat("--device ", config.device, ": rates are of processors");
  } else if (config.accumulate > kMostMicroBatches / layout.num_ranks()) {
    why = absl::StrCat("more than ", kMostMicroBatches, " micro-batches over all ranks");
  } else {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("no dry run of ranks has ", why));
}

}  // namespace

absl::StatusOr<RankStep> ForetellRankStep(const ModelSpec& spec, const RunConfig& config,
                                          const RankLayout& layout, int64_t rank,
                                          const RankStepRates& rates) {
  GEMINI_RETURN_IF_ERROR(CheckDryRun(config, layout));
  ActionWriter writer(rates);
  CommunicatorDry communicator(rank, layout.num_ranks(), &writer);
  GEMINI_ASSIGN_OR_RETURN(const ModelStages stages, StagesOfRun(spec, config, layout));
  GEMINI_ASSIGN_OR_RETURN(const PartOfRun part,
                          MakePartOfRun(spec, config, layout, stages, communicator, torch::kMeta));
  RunConfig asking = config;  // For what it needs of HOST, whatever it is given.
  asking.host_memory = kAutoBytes;
  GEMINI_ASSIGN_OR_RETURN(const ShardPlan plan, PlanShards(asking, *part.model, layout, rank,
                                                           std::numeric_limits<int64_t>::max()));
  const RoundShape round = RoundOf(config);
  if (spec.task.kind == TaskKind::kMasked) {  // They count their labels before.
    GatherLosses(RankAgreement(communicator), {}).status().IgnoreError();
  }
  absl::StatusOr<NamedTrace> step = TraceRun(
      spec, *part.model, round, rates.compute, [&](absl::FunctionRef<int64_t()> computed_ns) {
        writer.set_clock([computed_ns] { return computed_ns(); });
        const absl::Cleanup stop = [&] { writer.set_clock(nullptr); };
        return RunMicroBatches(part, config, round);
      });
  GEMINI_RETURN_IF_ERROR(step.status());
  AddWaits(writer.waits(), step->trace);
  double gradient_bytes = 0;
  for (const int32_t tensor : step->trace.updated) {
    gradient_bytes += static_cast<double>(step->trace.tensors[tensor].size_bytes);
  }
  const double before = writer.SecondsByItself();
  ExchangeForUpdate(part, config, layout, communicator, [&] { writer.Move(gradient_bytes); });
  // As in a round that runs, it is the interval of the update, which is the trace's last operator.
  step->trace.operators.back().compute_ns +=
      std::llround((writer.SecondsByItself() - before) * 1e9);
  GEMINI_ASSIGN_OR_RETURN(const Prediction prediction,
                          PredictionOf(step->trace, config, plan.memory, rates));
  writer.Begin(static_cast<double>(prediction.fetch_bytes + prediction.evict_bytes) /
               rates.copy_bytes_per_second);
  // Each value but the gradient's is read and written. An update on DEVICE is taken for one in
  // HOST.
  const auto kinds = static_cast<double>(TrainableKinds(round.format()).size());
  writer.Compute(gradient_bytes * (2 * kinds - 1) /
                 (kBytesAnUpdate * rates.update_elements_per_second));
  return RankStep{.actions = writer.made(),
                  .sent = communicator.sent_by_kind(),
                  .host_bytes = plan.memory.bytes[Tier::kHost],
                  .device_peak_bytes = prediction.device_peak_bytes};
}

absl::StatusOr<RanksForecast> ForetellStepOfRanks(const ModelSpec& spec, const RunConfig& config,
                                                  int64_t num_ranks, const RankStepRates& rates) {
  GEMINI_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(config, num_ranks));
  RanksForecast forecast;
  std::vector<policies::RankActions> actions;
  absl::Status too_small;  // Of the rank that needs most of DEVICE.
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    absl::StatusOr<RankStep> step = ForetellRankStep(spec, config, layout, rank, rates);
    if (!step.ok()) {
      absl::Status status(step.status().code(),
                          absl::StrCat("rank ", rank, ": ", step.status().message()));
      const std::optional<int64_t> least = LeastDeviceBytes(step.status());
      if (!least.has_value()) return status;
      SetLeastDeviceBytes(*least, status);
      // Nothing is less than any number.
      if (least > LeastDeviceBytes(too_small)) too_small = std::move(status);
      continue;
    }
    actions.push_back(std::move(step->actions));
    int64_t sent_bytes = 0;
    for (const auto& [kind, sent] : step->sent) sent_bytes += sent.bytes;
    if (rank == 0) forecast.sent = std::move(step->sent);
    forecast.most_sent_bytes = std::max(forecast.most_sent_bytes, sent_bytes);
    forecast.host_bytes = std::max(forecast.host_bytes, step->host_bytes);
    forecast.device_peak_bytes = std::max(forecast.device_peak_bytes, step->device_peak_bytes);
  }
  GEMINI_RETURN_IF_ERROR(too_small);
  GEMINI_ASSIGN_OR_RETURN(const std::vector<policies::PlayedRank> played,
                          policies::PlayStep(actions, rates.processors));
  forecast.last = *std::ranges::max_element(played, {}, &policies::PlayedRank::end_seconds);
  return forecast;
}

}  // namespace gemini::trainer
