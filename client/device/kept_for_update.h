// SPDX-License-Identifier: Apache-2.0
// Names the ranges that a plan keeps on DEVICE for the optimizer's update: those that are updated
// there, and gradients that are written back when the step is taken.
// Thread: plain values.
#pragma once
#include <cstdint>
#include <vector>

#include "client/device/device_range.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"

namespace gemini::client {

// Ranges that are updated together on DEVICE: one of each kind of chunk that the same bundles have.
struct UpdateRanges {
  const ChunkStore* store = nullptr;
  BundleId first;
  int64_t num_bundles = 0;
  KindMap<RangeId> ranges;  // By default none.
};

// Gradients that the update of their bundles in HOST waits for.
struct GradientRange {
  const ChunkStore* store = nullptr;
  BundleId first;
  int64_t num_bundles = 0;
  RangeId grad;
};

// The ranges on DEVICE when an update begins.
struct KeptForUpdate {
  std::vector<UpdateRanges> updates;
  std::vector<GradientRange> late_gradients;
};

}  // namespace gemini::client
