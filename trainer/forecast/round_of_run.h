// SPDX-License-Identifier: Apache-2.0
// The round that a training step of a run is, for a forecast.
// Pure: no I/O, no clock.
#pragma once
#include "trainer/config/run_config.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

// The vertical schedule moves a block's parameters once a pass, as one micro-batch does that is
// recomputed. `config` has passed the checks of its keys (RunKeys).
RoundShape RoundOf(const RunConfig& config);

}  // namespace gemini::trainer
