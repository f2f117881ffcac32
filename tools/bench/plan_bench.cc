// SPDX-License-Identifier: Apache-2.0
// What a plan costs to make, and what it saves. Reports the counters that tools/measure reads:
// `value`, `baseline`, and `checked` (1: the result was verified).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "policies/planner/planner.h"
#include "policies/planner/replacement.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/moved_bytes.h"
#include "policies/trace/next_uses.h"
#include "trainer/families/hf_config.h"
#include "trainer/forecast/traced_step.h"

namespace gemini::policies {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Report(benchmark::State& state, double value, double baseline, bool checked) {
  state.counters["value"] = value;
  state.counters["baseline"] = baseline;
  state.counters["checked"] = checked ? 1 : 0;
}

constexpr int64_t kChunks = 5'000;  // For parameters, and as many for gradients.
constexpr int64_t kUses = 100'000;

struct LargeRound {
  // One of every so many tensors is of two to four chunks; 0: none is.
  int64_t spanning = 0;
  // Gradients are complete at once, at the round's end, so that they may be kept; otherwise a
  // second micro-batch of nine adds to them on DEVICE.
  bool may_keep_gradients = false;
};

// Layers in no order at all but for the first pass, so that nothing is easy to keep; non-model data
// that comes and goes.
Trace LargeTrace(const LargeRound& round) {
  Trace trace;
  trace.phase = "train";
  std::mt19937_64 sizes(/*seed=*/11);
  for (int64_t chunks = 0; chunks < kChunks;) {
    int64_t size = 1;
    if (round.spanning > 0 && sizes() % round.spanning == 0) size += 1 + sizes() % 3;
    size = std::min(size, kChunks - chunks);
    trace.tensors.push_back({size * kPageBytes, TensorGroup::kTrainable, 0});
    chunks += size;
  }
  const auto num_tensors = static_cast<int64_t>(trace.tensors.size());
  std::mt19937_64 random(/*seed=*/3);
  const auto add = [&](int64_t tensor, ChunkKind kind) {
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 1, 10'000,
                               static_cast<int64_t>(random() % 50) * kPageBytes});
    trace.uses.push_back({static_cast<int32_t>(tensor), kind, kind == ChunkKind::kGrad});
  };
  const auto add_any_until = [&](int64_t num_uses) {
    while (static_cast<int64_t>(trace.uses.size()) < num_uses) {
      add(static_cast<int64_t>(random() % num_tensors), ChunkKind::kParam);
    }
  };
  for (int64_t i = 0; i < num_tensors; ++i) add(i, ChunkKind::kParam);
  if (round.may_keep_gradients) add_any_until(kUses - num_tensors);
  for (int64_t i = num_tensors - 1; i >= 0; --i) {
    add(round.may_keep_gradients ? i : static_cast<int64_t>(random() % num_tensors),
        ChunkKind::kParam);
    trace.gradient_outs.push_back({trace.num_positions() - 1, static_cast<int32_t>(i)});
  }
  if (!round.may_keep_gradients) {
    for (int64_t i = 0; i < num_tensors; ++i) add(i, ChunkKind::kGrad);
    add_any_until(kUses);
  }
  trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 0, 1'000, 0});
  for (int32_t i = 0; i < num_tensors; ++i) trace.updated.push_back(i);
  return trace;
}

// Plans `trace` with room for `device_chunks`; below it the time of one replay by least recently
// used, the least that looks at each use. `checked`: what else is to hold of the measurement.
void MeasurePlans(benchmark::State& state, const RangeTrace& trace, int64_t device_chunks,
                  bool checked) {
  PlanInputs inputs = {.trace = trace,
                       .budget_bytes = {},
                       .costs = {.host_to_device = 4e8, .device_to_host = 4e8},
                       .policy = {}};
  inputs.budget_bytes[Tier::kDevice] = device_chunks * kPageBytes;
  inputs.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
  std::vector<double> plans, replays;
  for (auto _ : state) {
    const auto start = Clock::now();
    const absl::StatusOr<Plan> plan = MakePlan(inputs);
    plans.push_back(SecondsSince(start));
    state.SetIterationTime(plans.back());
    const auto between = Clock::now();
    const auto lru = SimulateLru(trace, inputs.budget_bytes[Tier::kDevice]);
    replays.push_back(SecondsSince(between) / 6);  // It plays six rounds.
    checked &= plan.ok() && lru.ok() && CheckPlan(*plan).ok() &&
               plan->prediction.fetch_bytes < lru->fetch_bytes;
  }
  Report(state, Median(plans), Median(replays), checked);
}

// A plan for 10,000 chunks and 100,000 uses with room for a quarter of the parameters.
void MeasurePlanSeconds(benchmark::State& state, const LargeRound& round) {
  const absl::StatusOr<RangeTrace> trace = PackTrace(LargeTrace(round), kPageBytes);
  if (!trace.ok()) return state.SkipWithError(trace.status().ToString().c_str());
  int64_t chunks = 0;
  for (const PlannedRange& range : trace->ranges) chunks += range.num_bundles;
  MeasurePlans(state, *trace, kChunks / 4 + 50,
               /*checked=*/chunks == 2 * kChunks && trace->uses.size() == kUses);
}

void plan_seconds(benchmark::State& state) { MeasurePlanSeconds(state, {}); }
BENCHMARK(plan_seconds)->UseManualTime()->MinTime(0.5);

// A run of adjacent slots has to be found and cleared for each fetch of a spanning tensor.
void plan_seconds_spans(benchmark::State& state) { MeasurePlanSeconds(state, {.spanning = 10}); }
BENCHMARK(plan_seconds_spans)->UseManualTime()->MinTime(0.5);

// Each choice of gradients to keep is a plan of its own.
void plan_seconds_kept(benchmark::State& state) {
  MeasurePlanSeconds(state, {.may_keep_gradients = true});
}
BENCHMARK(plan_seconds_kept)->UseManualTime()->MinTime(0.5);

void plan_seconds_kept_spans(benchmark::State& state) {
  MeasurePlanSeconds(state, {.spanning = 10, .may_keep_gradients = true});
}
BENCHMARK(plan_seconds_kept_spans)->UseManualTime()->MinTime(0.5);

// Frozen tensors in no order, half of whose chunks are in runs of two, with room for a quarter of
// them.
void MeasureRunsOfTwo(benchmark::State& state, int32_t num_chunks, int32_t num_uses) {
  Trace trace;
  trace.phase = "eval";
  for (int32_t chunks = 0; chunks < num_chunks;) {
    const int32_t size = trace.tensors.size() % 3 == 2 ? 2 : 1;
    trace.tensors.push_back({size * kPageBytes, TensorGroup::kFrozen, 0});
    chunks += size;
  }
  std::mt19937_64 random(/*seed=*/5);
  for (int32_t i = 0; i < num_uses; ++i) {
    trace.operators.push_back({i, 1, 10'000, static_cast<int64_t>(random() % 20) * kPageBytes});
    const auto tensor = static_cast<int32_t>(random() % trace.tensors.size());
    trace.uses.push_back({.tensor = tensor});
  }
  const absl::StatusOr<RangeTrace> packed = PackTrace(trace, kPageBytes);
  if (!packed.ok()) return state.SkipWithError(packed.status().ToString().c_str());
  MeasurePlans(state, *packed, num_chunks / 4 + 25, /*checked=*/true);
}

void plan_seconds_runs_of_two(benchmark::State& state) {
  MeasureRunsOfTwo(state, /*num_chunks=*/10'000, /*num_uses=*/100'000);
}
BENCHMARK(plan_seconds_runs_of_two)->UseManualTime()->MinTime(0.5);

// About the largest trace that is accepted (policies/planner/plan_effort.h).
void plan_seconds_largest(benchmark::State& state) {
  MeasureRunsOfTwo(state, /*num_chunks=*/20'000, /*num_uses=*/1'000'000);
}
BENCHMARK(plan_seconds_largest)->UseManualTime()->Iterations(1);

// Bytes of a training step of GPT-2 (12 layers, width 768, vocabulary 8,192, 1 x 256 tokens) with
// DEVICE at 25% of its parameters beside the non-model peak, updated in HOST. The value is auto's
// part of what on-line placement moves; the baseline the part of farthest next use that forgets the
// next round. A frozen base with a tied embedding that trains alone is where that matters, so the
// table has it too.
void plan_gpt2_bytes_fraction_of_lru(benchmark::State& state) {
  const absl::StatusOr<trainer::HfConfig> config = trainer::ParseHfConfig(
      R"({"model_type":"gpt2","vocab_size":8192,"resid_pdrop":0,"embd_pdrop":0,"attn_pdrop":0})",
      "plan_bench");
  if (!config.ok()) return state.SkipWithError(config.status().ToString().c_str());
  const absl::StatusOr<trainer::NamedTrace> step = trainer::TraceStep(
      config->spec, {.sequence = 256},
      {.flops_per_second = 1e11, .memory_bytes_per_second = 1e10, .kernel_ns = 2'000});
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
  constexpr int64_t kChunkBytes = 2 * kMiB;
  Trace frozen = step->trace;
  for (size_t i = 1; i < frozen.tensors.size(); ++i) {
    frozen.tensors[i].group = TensorGroup::kFrozen;
  }
  frozen.updated = {0};
  std::erase_if(frozen.gradient_outs, [](const GradientOut& out) { return out.tensor != 0; });
  double fraction = 0, forgetful_fraction = 0;
  bool checked = true;
  for (const auto& [name, tensors] :
       {std::pair<const char*, const Trace&>("all trained", step->trace),
        {"base frozen", frozen}}) {
    const absl::StatusOr<RangeTrace> trace = PackTrace(tensors, kChunkBytes);
    if (!trace.ok()) return state.SkipWithError(trace.status().ToString().c_str());
    int64_t param_bytes = 0, peak_bytes = 0;
    for (const TracedTensor& tensor : tensors.tensors) param_bytes += tensor.size_bytes;
    for (const TracedOperator& at : tensors.operators) {
      peak_bytes = std::max(peak_bytes, at.non_model_peak_bytes);
    }
    const int64_t device_bytes = param_bytes / 4 + peak_bytes;
    PlanInputs inputs = {.trace = *trace,
                         .budget_bytes = {},
                         .costs = {.host_to_device = 4e8,
                                   .device_to_host = 4e8,
                                   .device_update_elements_per_second = 0},
                         .policy = {}};
    inputs.budget_bytes[Tier::kDevice] = device_bytes;
    inputs.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
    const auto slots_at = SlotsAtPositions(*trace, device_bytes);
    const auto lru = SimulateLru(*trace, device_bytes);
    const auto fewest = FewestBytes(*trace, device_bytes);
    const auto plan = MakePlan(inputs);
    if (!slots_at.ok() || !lru.ok() || !fewest.ok() || !plan.ok()) {
      return state.SkipWithError("no plan of the GPT-2 trace");
    }
    const auto forgetful =
        MakeStays(*trace, NextUses(*trace), *slots_at,
                  static_cast<int32_t>(device_bytes / kChunkBytes), {.looks_ahead = false});
    if (!forgetful.ok()) return state.SkipWithError(forgetful.status().ToString().c_str());
    int64_t forgetful_bytes = 0;
    for (const Stay& stay : *forgetful) {
      if (stay.needed == kAlways) continue;
      forgetful_bytes += trace->ranges[stay.range].num_bundles * kChunkBytes;
    }
    std::fprintf(stderr,
                 "GPT-2, %s, MiB fetched a step: auto %lld (%s), LRU %lld, Belady without the next "
                 "step %lld, fewest %lld\n",
                 name, static_cast<long long>(plan->prediction.fetch_bytes / kMiB),
                 plan->made_by.c_str(), static_cast<long long>(lru->fetch_bytes / kMiB),
                 static_cast<long long>(forgetful_bytes / kMiB),
                 static_cast<long long>(fewest->fetch_bytes / kMiB));
    checked &= CheckPlan(*plan).ok() && plan->prediction.fetch_bytes >= fewest->fetch_bytes;
    if (fraction > 0) continue;
    fraction =
        static_cast<double>(plan->prediction.fetch_bytes) / static_cast<double>(lru->fetch_bytes);
    forgetful_fraction =
        static_cast<double>(forgetful_bytes) / static_cast<double>(lru->fetch_bytes);
  }
  for (auto _ : state) state.SetIterationTime(1e-3);
  Report(state, fraction, forgetful_fraction, checked);
}
BENCHMARK(plan_gpt2_bytes_fraction_of_lru)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace gemini::policies
