// SPDX-License-Identifier: Apache-2.0
// What the optimizer step on the CPU costs, beside those of DeepSpeed and Torch and beside the
// memory's speed. Both sides do the same job: bf16 gradients to fp32, their norm, the clip factor,
// AdamW on the fp32 master, bf16 parameters out. They take turns, each first in every other pair.
// Reports the counters that tools/measure reads: `value`, `baseline`, and `checked` (1: the result
// was verified).
// Threads: 2 on both sides, as in the goals, where there are as many; GEMINI_BENCH_THREADS says
//          another number.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "gemini/system/update_team.h"
#include "tools/bench/adam_baseline.h"
#include "tools/bench/adam_job.h"

namespace gemini::bench {
namespace {

constexpr int64_t kElements = int64_t{128} << 20;
constexpr int kPairs = 7;

int NumThreads() {
  int num_threads = 0;
  const char* const given = std::getenv("GEMINI_BENCH_THREADS");
  if (given != nullptr && absl::SimpleAtoi(given, &num_threads) && num_threads >= 1) {
    return std::min(num_threads, kMaxUpdateThreads);
  }
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 2u));
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double SecondsOf(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void RatioTo(benchmark::State& state, absl::string_view engine) {
  const auto baseline = AdamBaseline::Start(kElements, NumThreads());
  if (!baseline.ok()) return state.SkipWithError(baseline.status().ToString().c_str());
  AdamJob job(kElements, NumThreads());
  job.Step();
  if (const auto warm_up = (*baseline)->Step(engine); !warm_up.ok()) {
    return state.SkipWithError(warm_up.status().ToString().c_str());
  }
  std::vector<double> ratios, ours, theirs, kernels;
  bool checked = true;
  for (auto _ : state) {
    double norm = 0;
    const auto step = [&] { norm = job.Step(); };
    const bool ours_first = ratios.size() % 2 == 0;
    if (ours_first) ours.push_back(SecondsOf(step));
    const auto times = (*baseline)->Step(engine);
    if (!times.ok()) return state.SkipWithError(times.status().ToString().c_str());
    if (!ours_first) ours.push_back(SecondsOf(step));
    theirs.push_back(times->seconds);
    kernels.push_back(times->kernel_seconds);
    ratios.push_back(theirs.back() / ours.back());
    checked &= std::isfinite(norm) && norm > 0 && std::isfinite(times->norm) && times->norm > 0;
    state.SetIterationTime(ours.back());
  }
  checked &= job.IsStepped();
  state.counters["value"] = Median(ratios);
  state.counters["baseline"] = Median(theirs);
  state.counters["checked"] = checked ? 1 : 0;
  state.counters["num_threads"] = NumThreads();
  state.counters["ours_seconds"] = Median(ours);
  state.counters["baseline_kernel_alone_seconds"] = Median(kernels);
  // The best runs, which other work on the machine disturbed least.
  state.counters["ratio_of_best"] =
      *std::ranges::min_element(theirs) / *std::ranges::min_element(ours);
  state.counters["ratio_min"] = *std::ranges::min_element(ratios);
  state.counters["ratio_max"] = *std::ranges::max_element(ratios);
}

void adam_ratio_to_deepspeed(benchmark::State& state) { RatioTo(state, "deepspeed"); }
BENCHMARK(adam_ratio_to_deepspeed)
    ->UseManualTime()
    ->Iterations(kPairs)
    ->Unit(benchmark::kMillisecond);

void adam_ratio_to_torch(benchmark::State& state) { RatioTo(state, "torch"); }
BENCHMARK(adam_ratio_to_torch)->UseManualTime()->Iterations(kPairs)->Unit(benchmark::kMillisecond);

// The update alone: 26 bytes an element, against the same streams with nothing computed.
void adam_fraction_of_bandwidth(benchmark::State& state) {
  AdamJob job(kElements, NumThreads());
  job.Update();
  std::vector<double> fractions, bare_rates, update_rates;
  const auto rate = [](double seconds) {
    return static_cast<double>(kElements * AdamJob::kBytesPerElement) * 1e-9 / seconds;
  };
  for (auto _ : state) {
    const bool update_first = fractions.size() % 2 == 0;
    double update = 0;
    if (update_first) update = SecondsOf([&] { job.Update(); });
    const double bare = SecondsOf([&] { job.BareLoop(); });
    if (!update_first) update = SecondsOf([&] { job.Update(); });
    fractions.push_back(bare / update);
    bare_rates.push_back(rate(bare));
    update_rates.push_back(rate(update));
    state.SetIterationTime(update);
  }
  job.Update();
  state.counters["value"] = Median(fractions);
  state.counters["baseline"] = Median(bare_rates);
  state.counters["checked"] = job.IsUpdated() ? 1 : 0;
  state.counters["num_threads"] = NumThreads();
  state.counters["update_gb_per_second"] = Median(update_rates);
  // The best runs, which other work on the machine disturbed least.
  state.counters["update_best_gb_per_second"] = *std::ranges::max_element(update_rates);
  state.counters["bare_best_gb_per_second"] = *std::ranges::max_element(bare_rates);
  state.counters["fraction_min"] = *std::ranges::min_element(fractions);
  state.counters["fraction_max"] = *std::ranges::max_element(fractions);
}
BENCHMARK(adam_fraction_of_bandwidth)
    ->UseManualTime()
    ->Iterations(kPairs)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gemini::bench
