// SPDX-License-Identifier: Apache-2.0
// Describes a training step of a run as a round, for a forecast.
// Pure: no I/O, no clock.
#pragma once
#include <cstdint>

#include "trainer/config/run_config.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

// The vertical schedule moves a block's parameters once a pass, as one micro-batch does that is
// recomputed. `config` has passed the checks of its keys (RunKeys).
// Tables of the vocabulary are whole.
RoundShape RoundOf(const RunConfig& config);

// Returns into how many blocks a round with `device_bytes` of DEVICE cuts its tables of the
// vocabulary where it is not said: as many as NumBlocksFor says, but one with a layer-wise
// optimizer, which needs the norm of a tensor.
int64_t VocabularyBlocks(const ModelSpec& spec, const RoundShape& round, int64_t device_bytes);
// Returns the same for a run, or what its --vocabulary-blocks says. It is one in plain memory, and
// where the rounding of moments is drawn by tensor.
int64_t VocabularyBlocks(const ModelSpec& spec, const RunConfig& config, int64_t device_bytes);

}  // namespace gemini::trainer
