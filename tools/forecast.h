// SPDX-License-Identifier: Apache-2.0
// Predicts what a training step of a transformer needs and how long it takes on a machine, from
// their numbers alone. The trace of trainer/forecast/transformer_trace.h is planned and simulated
// by the code that places chunks in a real run.
// HOST and NVME: what HOST does not hold lies on NVME, moments first; they are read and written
// once a step. Reads are ahead of their use, so NVME costs rate and not latency: it slows the
// updates, the fetches and the gradients by the share of their bytes that it holds. A step takes at
// least the time of all its reads, or of all its writes.
// Steps of many micro-batches: beyond kSimulatedMicroBatches each one more costs what the last
// simulated one did.
// Pure: no I/O, no clock.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/cost_model.h"
#include "gemini/device_shortage.h"
#include "gemini/plan/plan.h"
#include "gemini/tier.h"
#include "policies/planner/chunk_size_search.h"
#include "trainer/forecast/transformer_trace.h"

namespace gemini::tools {

inline constexpr int64_t kSimulatedMicroBatches = 4;

struct Job {
  policies::TransformerShape shape;
  policies::RoundShape round;
  int64_t chunk_bytes = 0;  // 0 for the best.
};

struct Machine {
  TierMap<int64_t> bytes;
  policies::ComputeRate compute;
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
  // OK, or RESOURCE_EXHAUSTED with the tier in which it fails and by how much. Times are 0 then.
  absl::Status fit;
  int64_t num_parameters = 0;
  int64_t tokens = 0;  // In one step.
  int64_t chunk_bytes = 0;
  std::vector<policies::TriedChunkSize> tried;  // If the size was searched.
  DeviceNeed device_floor;                      // Of the operator that needs the most.
  int64_t non_model_peak_bytes = 0;
  int64_t needed_bytes = 0;  // In HOST and NVME together.
  int64_t spare_bytes = 0;   // Part of them: HOST that updates and copies in flight need.
  StateBytes host;
  StateBytes nvme;
  std::string made_by;  // The policy that won.
  Prediction prediction;
  std::array<double, kNumForecastLanes> busy_fraction = {};  // Share of the step, by ForecastLane.
  bool is_extrapolated = false;  // Whether it is extrapolated from fewer micro-batches.

  ForecastLane bottleneck() const;  // The busiest lane.
  double tokens_per_second() const;
};

// INVALID_ARGUMENT: an invalid shape or round, or a chunk size that Layout refuses.
absl::StatusOr<Forecast> MakeForecast(const Job& job, const Machine& machine);

}  // namespace gemini::tools
