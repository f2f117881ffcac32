// SPDX-License-Identifier: Apache-2.0
// Measures how much this machine computes and copies in a second. That turns a predicted trace into
// times before the first step is taken.
// Thread: any; takes the threads that Torch has.
#pragma once
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"
#include "gemini/cost_model.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

// Measures the CPU, in fp32. It blocks for some 150 ms and needs 24 MiB meanwhile.
ComputeRate MeasureComputeRate();
// Returns what is left of the CPU for this process while others do the same as it: the mean of some
// time, and not the fastest run. It blocks for 1.5 seconds and needs 130 MiB meanwhile.
ComputeRate MeasureSharedComputeRate();

struct GpuRates {
  ComputeRate compute;
  // The link's rates and those of updates are measured. NVMe's keep their defaults.
  CostModel costs;
};

// Measures a GPU, with products in `type`, and the HOST beside it. It blocks for half a second and
// needs some 200 MiB of the GPU, which go back when a session begins, and 256 MiB of HOST
// meanwhile. UNAVAILABLE: Torch or CUDA fails; the message says what.
absl::StatusOr<GpuRates> MeasureGpuRates(c10::Device gpu, c10::ScalarType type);

}  // namespace gemini::trainer
