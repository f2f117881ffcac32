// SPDX-License-Identifier: Apache-2.0
// Plans how much of each tier a run asks for, and what of it boundary activations get. Sizes that
// the configuration calls "auto" are computed here.
// Units:  bytes, but for numbers of parameters, which are elements.
#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/layout.h"
#include "gemini/system/host_memory.h"
#include "gemini/tier.h"
#include "trainer/config/run_config.h"

namespace gemini::trainer {

// The activations between blocks that the vertical schedule keeps at one time.
struct BoundaryActivations {
  int64_t count = 0;  // One a block and micro-batch.
  // The bytes of each tensor that one activation has: a pair trunk's has two, others have one.
  std::vector<int64_t> tensor_bytes = {};

  int64_t size_bytes() const {
    return std::accumulate(tensor_bytes.begin(), tensor_bytes.end(), int64_t{0});
  }
};
// `elements_of_row`: of each of these tensors (ModelSpec::ElementsBetweenBlocks).
BoundaryActivations BoundaryActivationsOf(const RunConfig& config, int64_t num_blocks,
                                          absl::Span<const int64_t> elements_of_row);

struct MemoryPlan {
  TierMap<int64_t> bytes;
  int64_t chunk_bytes = 0;
  // What of DEVICE will do where other jobs hold the rest; 0: all. PlanMemory leaves it 0.
  int64_t device_floor_bytes = 0;
  // DEVICE keeps up to so many bytes of boundary activations. The others get so many of HOST, which
  // bytes has, too; 0: none leaves DEVICE.
  int64_t kept_activation_bytes = 0;
  int64_t host_activation_bytes = 0;
};

// Returns the DEVICE budget in bytes: the configured one, or if that is "auto", DefaultDeviceBytes
// beside the HOST that PlanMemory gives for so many elements of trained and of other parameters,
// without what chunks and activations add.
int64_t DeviceMemory(const RunConfig& config, int64_t num_trained, int64_t num_frozen,
                     const HostMemory& memory);

// Returns the whole plan for a model of these tensors, in chunks of `chunk_bytes`. DEVICE is a
// number in `config`. If HOST is "auto", it has room for
//   - parameters, gradients and optimizer states in whole chunks, without the states if
//     --optimizer-tier is nvme; with --nvme at most half of what is available,
//   - the spare chunks that updates need,
//   - the activations that leave DEVICE, which are those beyond a quarter of it.
absl::StatusOr<MemoryPlan> PlanMemory(const RunConfig& config, absl::Span<const TensorSpec> tensors,
                                      const BoundaryActivations& activations, int64_t chunk_bytes,
                                      int64_t available_bytes);

}  // namespace gemini::trainer
