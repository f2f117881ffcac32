// SPDX-License-Identifier: Apache-2.0
// How much of each tier a run asks for, where its configuration says "auto".
// Units:  bytes.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/layout.h"
#include "gemini/tier.h"
#include "trainer/run_config.h"

namespace gemini::trainer {

struct MemoryPlan {
  TierMap<int64_t> bytes;
  int64_t chunk_bytes = 0;
};

// DEVICE when "auto": a quarter of the memory that is available.
int64_t DeviceMemory(const RunConfig& config, int64_t available_bytes);

// The whole plan for a model of these tensors, in chunks of `chunk_bytes`. HOST when "auto": parameters,
// gradients and moments in whole chunks and the spare ones that updates need; with --nvme at most half
// of what is available.
absl::StatusOr<MemoryPlan> PlanMemory(const RunConfig& config, absl::Span<const TensorSpec> tensors,
                                      int64_t chunk_bytes, int64_t available_bytes);

// What the kernel thinks can be taken without swapping (MemAvailable). INTERNAL: it does not say.
absl::StatusOr<int64_t> AvailableMemory();

}  // namespace gemini::trainer
