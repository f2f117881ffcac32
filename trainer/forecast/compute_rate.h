// SPDX-License-Identifier: Apache-2.0
// What this machine computes a second, measured: what turns a foretold trace into times before the
// first step was taken.
// Thread: any; takes the threads that Torch has. Blocks for some 150 ms and needs 24 MiB meanwhile.
#pragma once
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

ComputeRate MeasureComputeRate();

}  // namespace gemini::trainer
