// SPDX-License-Identifier: Apache-2.0
// The HOST slots that a space needs beside those of its chunks, so that whatever is under way at
// one time finds room.
#pragma once
#include <cstdint>

#include "gemini/plan/plan.h"
#include "gemini/state_format.h"

namespace gemini {

// One bundle's update: its chunks, which may have to come from NVME, and new ones for all but the
// gradient. ChunkStore keeps them from all others while updates are pending.
constexpr int64_t UpdateSlots(const StateFormat& format) {
  return TrainableKinds(format).size() + UpdatedKinds(format).size();
}
// One gradient that is written back after the intent: kept for it while any awaits that.
inline constexpr int64_t kLateGradientSlots = 1;
// Chunks that a loader fills at one time (client/torch/model/tensor_writer.h); none while updates
// are pending.
inline constexpr int64_t kOpenChunks = 4;
// That one batch of write-backs holds (client/device/copy_batch.h): enough to keep the link busy.
inline constexpr int64_t kBatchSlots = 4;
// Copies to DEVICE that a plan has under way (client/plan/plan_executor.h).
inline constexpr int64_t kPlannedCopies = 8;
// The same of those that are begun on-line (client/device/copy_landings.h): so far a thread may be
// ahead of its GPU.
inline constexpr int64_t kOnlineCopies = 8;
// That read-ahead from NVME leaves free: for an update's new chunks, and gradients.
inline constexpr int64_t kFreeSlots = 8;
// Bundles whose optimizer states have room in HOST where their home is NVME: being read, and being
// written.
inline constexpr int64_t kStateBundlesInHost = 4;
constexpr int64_t StateWindowSlots(const StateFormat& format) {
  return kStateBundlesInHost * NumStateChunks(format);
}
// Beside an update, a plan holds its copies to DEVICE and a batch of write-backs, and so does
// whoever else writes late gradients back. When none is pending, gradients hold slots, too.
// Operators that place ranges on-line hold a batch, which they let go of when no slot can be freed:
// before that is an error. While updates are pending they wait with it, for the updater's slots are
// kept from them. Their copies to DEVICE end by themselves, and who finds no slot waits for that.
inline constexpr int64_t kSlotsBesideUpdate = 17;
static_assert(kSlotsBesideUpdate >= kOpenChunks + kMaxGradientsUnderWay + 1);
static_assert(kSlotsBesideUpdate >= kLateGradientSlots + kPlannedCopies + 2 * kBatchSlots);
constexpr int64_t SpareSlots(const StateFormat& format, bool states_on_nvme = false) {
  return UpdateSlots(format) + kSlotsBesideUpdate + (states_on_nvme ? StateWindowSlots(format) : 0);
}
static_assert(SpareSlots({}) >= kMaxGradientsUnderWay + kPlannedCopies + kBatchSlots);

}  // namespace gemini
