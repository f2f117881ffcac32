// SPDX-License-Identifier: Apache-2.0
// Computes how many HOST slots a space needs beside those of its chunks, so that all that is in
// flight at one time finds room.
#pragma once
#include <cstdint>

#include "gemini/plan/plan.h"
#include "gemini/state_format.h"

namespace gemini {

// Slots for one bundle's update: its chunks, which may have to be read from NVME, and new ones for
// all except the gradient. ChunkStore keeps them from all others while updates are pending.
constexpr int64_t UpdateSlots(const StateFormat& format) {
  return TrainableKinds(format).size() + UpdatedKinds(format).size();
}
// One gradient that is written back after the intent. The slot is reserved for it while any
// gradient awaits that.
inline constexpr int64_t kLateGradientSlots = 1;
// Chunks that a loader fills at one time (client/torch/model/tensor_writer.h), which it does not do
// while updates are pending.
inline constexpr int64_t kOpenChunks = 4;
// Slots that one batch of write-backs holds (client/device/copy_batch.h): enough to keep the link
// busy.
inline constexpr int64_t kBatchSlots = 4;
// Copies to DEVICE in flight (client/device/copy_landings.h): a thread may be this far ahead of its
// GPU. It is enough that a stream of 1 MiB chunks at 25 GB/s survives a thread's wake-up of 0.2 ms.
inline constexpr int64_t kFetchCopies = 8;
// Slots that read-ahead from NVME leaves free, for an update's new chunks and gradients.
inline constexpr int64_t kFreeSlots = 8;
// Threads of a space that read ahead by a plan.
inline constexpr int64_t kReadersAhead = 2;
// HOST slots that hold no chunk, on average, where a plan is followed and not all chunks have room:
// those that stay free, an update's new chunks, for which as many are spilled, and the one for
// which each reader makes room.
constexpr int64_t SlotsBetweenChunks(const StateFormat& format) {
  return kFreeSlots + UpdatedKinds(format).size() + kReadersAhead;
}
// Bundles whose optimizer states have room in HOST, while they are read and written, if their home
// is NVME.
inline constexpr int64_t kStateBundlesInHost = 4;
// HOST slots for these.
constexpr int64_t StateWindowSlots(const StateFormat& format) {
  return kStateBundlesInHost * NumStateChunks(format);
}
// HOST slots for all that is in flight beside an update. Copies to DEVICE hold slots, a plan holds
// a batch of write-backs, and so does whoever else writes late gradients back. When no update is
// pending, gradients hold slots, too. Who makes room on-line holds a batch, which it releases when
// no slot can be freed, before that becomes an error. While updates are pending it waits and still
// holds it: the updater's slots are reserved. Copies to DEVICE end without help from a waiting
// thread, so a thread that finds no slot waits for that.
inline constexpr int64_t kSlotsBesideUpdate = 17;
static_assert(kSlotsBesideUpdate >= kOpenChunks + kMaxGradientsUnderWay + 1);
static_assert(kSlotsBesideUpdate >= kLateGradientSlots + kFetchCopies + 2 * kBatchSlots);
// All HOST slots that a space has beside those of its chunks.
constexpr int64_t SpareSlots(const StateFormat& format, bool states_on_nvme = false) {
  return UpdateSlots(format) + kSlotsBesideUpdate + (states_on_nvme ? StateWindowSlots(format) : 0);
}
static_assert(SpareSlots({}) >= kMaxGradientsUnderWay + kFetchCopies + kBatchSlots);

}  // namespace gemini
