// SPDX-License-Identifier: Apache-2.0
// Computes a lower bound of the DEVICE memory that a rank of a job needs, before its first step:
// with less no step of it runs. A step may need more. The bound leaves out gradients that wait for
// those of other micro-batches, and parts of what the ranks exchange, and it lets routers deal
// their tokens evenly: an expert that gets more of them needs no less.
// Units:  bytes.
// Thread: as traced_step.h.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "gemini/device_shortage.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/named_trace.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

// Returns the trace of a step of one micro-batch, of the layers that `rank` has, as if it had no
// units, and without memory that depends on the processor. It asks no other rank. The model has
// passed CheckLayout. Errors: as TraceStep, and of MakeStagedModel.
absl::StatusOr<NamedTrace> TraceStepOfRank(const ModelSpec& spec, RoundShape round,
                                           const RankLayout& layout, int64_t rank);

// Returns what the neediest part of a rank's step is known to need: adding up the gradients of a
// unit, or an operator; in a pipeline, of its stages. `step` is the trace of the model that `model`
// has units of, or empty: nothing is known of its operators then.
DeviceNeed FindFloorOfRank(const GatheredModel& model, ElementType element, const NamedTrace& step);

}  // namespace gemini::trainer
