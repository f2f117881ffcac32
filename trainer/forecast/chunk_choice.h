// SPDX-License-Identifier: Apache-2.0
// Chooses the chunk size of a run: the one asked for, else one with which the planner predicts a
// fast step and the model needs little HOST (policies/planner/chunk_size_search.h), from its
// config.json and the run's settings alone.
// Model:  the trace of trainer/forecast/traced_step.h, of kMostMicroBatches micro-batches at most,
//         because the others would repeat the last one; so are the times in `reason`. A kept trace
//         asks for no size: traces are of tensors, and spaces end with their sessions.
// Thread: as TraceStep, which it calls.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/cost_model.h"
#include "gemini/device_shortage.h"
#include "trainer/config/run_config.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

inline constexpr int64_t kMostMicroBatches = 3;

struct ChunkChoice {
  int64_t chunk_bytes = 0;
  std::string reason;  // A line for the log: what was predicted, or why nothing was.
  // The least DEVICE that the predicted step fits into; 0: none was predicted.
  int64_t device_floor_bytes = 0;
  // What the step's largest operator needs in chunks of that size, with what the process itself
  // takes; nothing: it cannot be known.
  std::optional<DeviceNeed> floor;
  // What phases of the run are foretold: "train", a whole step, and "eval", a whole batch of an
  // evaluation whose experts are not routed. Neither is there on a GPU, with the vertical schedule,
  // in fp16, without plans or a measured rate of computing, where a step has more than 100,000
  // operators or the dry run failed.
  std::vector<Trace> rounds = {};
};

struct ChunkChoiceInputs {
  const RunConfig& config;  // Its sequence is not 0.
  const ModelSpec& model;
  int64_t device_bytes = 0;
  // A GPU's context takes so much of DEVICE, which no chunk and no operator can have.
  int64_t context_bytes = 0;
  // An error: why it is not known, so no step is predicted.
  absl::StatusOr<ComputeRate> compute = absl::UnavailableError("nothing was measured");
  CostModel links;  // --device-bandwidth comes before its rates.
  // A power of two >= 64 KiB: the largest that is tried, and taken when no step can be predicted,
  // halved while a traced step's largest operator does not fit.
  // With larger ones operators could pin more than DEVICE holds.
  int64_t most_chunk_bytes = 0;
};

ChunkChoice ChooseChunkSize(const ChunkChoiceInputs& inputs);

// RESOURCE_EXHAUSTED: `device_bytes` of DEVICE are less than the step's floor; names it and its
// operator.
absl::Status CheckDeviceFloor(const ChunkChoice& choice, int64_t device_bytes);

}  // namespace gemini::trainer
