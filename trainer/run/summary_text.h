// SPDX-License-Identifier: Apache-2.0
// Composes what gemini-train prints when a run has ended: how far it came, its losses, the memory
// that it took and moved, and how often it followed a plan.
// Pure: no I/O, no clock.
#pragma once
#include <string>

#include "trainer/config/run_config.h"
#include "trainer/run/training_loop.h"

namespace gemini::trainer {

// Returns lines, each with its end. Those on tiers are left out where there was no session.
std::string SummaryText(const RunConfig& config, const TrainingSummary& summary);

}  // namespace gemini::trainer
