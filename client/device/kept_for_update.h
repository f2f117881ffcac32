// SPDX-License-Identifier: Apache-2.0
// Which chunks a plan keeps on DEVICE for the optimizer's update: those that are updated there, and
// gradients that leave when the step is taken.
// Thread: values without one.
#pragma once
#include <cstdint>
#include <vector>

#include "client/device/planned_moves.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

// What is updated together on DEVICE: a range of each kind of chunk that the same bundles have.
struct UpdateRanges {
  const ChunkStore* store = nullptr;
  BundleId first;
  int64_t num_bundles = 0;
  KindMap<RangeId> ranges;  // The default: none.
};

// Gradients that the update in HOST of their bundles waits for.
struct GradientRange {
  const ChunkStore* store = nullptr;
  BundleId first;
  int64_t num_bundles = 0;
  RangeId grad;
};

// What lies on DEVICE when an update begins.
struct KeptForUpdate {
  std::vector<UpdateRanges> updates;
  std::vector<GradientRange> late_gradients;
};

}  // namespace gemini::client
