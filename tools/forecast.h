// SPDX-License-Identifier: Apache-2.0
// Predicts what a training step needs and how long it takes on a machine, by its trace: one that
// was predicted (trainer/forecast/traced_step.h), or that a job recorded. It is planned and
// simulated in all tiers by the code that makes the plans of a real run. Steps of many
// micro-batches: beyond kSimulatedMicroBatches each one more costs what the last simulated one did.
// Pure: no I/O, no clock.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/cost_model.h"
#include "gemini/device_shortage.h"
#include "gemini/plan/plan.h"
#include "gemini/plan/trace.h"
#include "gemini/policy_options.h"
#include "gemini/tier.h"
#include "policies/planner/chunk_size_search.h"
#include "trainer/forecast/named_trace.h"
#include "trainer/forecast/trace_exchange.h"

namespace gemini::tools {

inline constexpr int64_t kSimulatedMicroBatches = 4;

struct Job {
  trainer::RoundShape round;
  int64_t chunk_bytes = 0;  // 0 for the best.
};

// Foretells the trace of a round of the job's model.
using RoundTracer =
    absl::FunctionRef<absl::StatusOr<trainer::NamedTrace>(const trainer::TraceRequest&)>;

struct Machine {
  TierMap<int64_t> bytes;
  trainer::ComputeRate compute;
  CostModel links;
};

// Sizes in bytes of whole chunks.
struct StateBytes {
  int64_t parameters = 0;  // In the format that DEVICE computes with.
  int64_t masters = 0;  // The rest of the fp32 values: the low half for bf16, all of it for fp16.
  int64_t moments = 0;
  int64_t gradients = 0;
  int64_t sum() const { return parameters + masters + moments + gradients; }
};

enum class ForecastLane : uint8_t { kCompute, kPcieIn, kPcieOut, kUpdate, kNvmeRead, kNvmeWrite };
inline constexpr int kNumForecastLanes = 6;
// "compute", "PCIe in", "PCIe out", "CPU update", "NVMe read" or "NVMe write".
absl::string_view ForecastLaneName(ForecastLane lane);

struct Forecast {
  // OK, or RESOURCE_EXHAUSTED with the tier in which it fails and by how much. Nothing is predicted
  // then.
  absl::Status fit;
  // Not OK: it fits, but there is too little of DEVICE for a plan. Chunks are placed on demand
  // then, and nothing is predicted either.
  absl::Status no_plan;
  int64_t num_parameters = 0;
  int64_t tokens = 0;  // In one step; 0 if that is not known.
  int64_t chunk_bytes = 0;
  std::vector<policies::TriedChunkSize> tried;  // If the size was searched.
  DeviceNeed device_floor;                      // Of the operator that needs the most.
  int64_t non_model_peak_bytes = 0;
  int64_t needed_bytes = 0;  // In HOST and NVME together.
  int64_t spare_bytes = 0;   // Part of them: HOST that updates and copies in flight need.
  // Where they find room. What of them is in HOST when, the plan decides.
  StateBytes host;
  StateBytes nvme;
  Plan plan;                                                 // Of the step as it was simulated.
  Prediction prediction;                                     // Of the whole step.
  std::array<double, kNumForecastLanes> busy_fraction = {};  // Share of the step, by ForecastLane.
  bool is_extrapolated = false;  // Whether it is extrapolated from fewer micro-batches.

  bool is_predicted() const { return prediction.round_ns > 0; }
  ForecastLane bottleneck() const;  // The busiest lane.
  double tokens_per_second() const;
};

// INVALID_ARGUMENT: an invalid round, a chunk size that Layout refuses, or one so small that HOST
// cannot be simulated. Others: those of `tracer`.
absl::StatusOr<Forecast> MakeForecast(const Job& job, const Machine& machine, RoundTracer tracer);
// Foretells the whole round of which `step` is the trace. With a `chunk_bytes` of 0 the best size
// is searched for.
absl::StatusOr<Forecast> MakeForecast(const trainer::NamedTrace& step, int64_t chunk_bytes,
                                      const Machine& machine);
// Foretells a round that a job recorded. With the budgets, rates and policy by which a server
// planned that round, `plan` is the server's plan.
absl::StatusOr<Forecast> MakeForecast(const Trace& trace, int64_t chunk_bytes,
                                      const PolicyOptions& policy, const Machine& machine);

}  // namespace gemini::tools
