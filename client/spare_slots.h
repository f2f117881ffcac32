// SPDX-License-Identifier: Apache-2.0
// The HOST slots that a space needs beside those of its chunks, so that whatever is under way at one
// time finds room.
#pragma once
#include <cstdint>

#include "gemini/plan.h"

namespace gemini::client {

// One bundle's update: parameter, two moments and gradient, which may have to come from NVME, and the
// three new chunks. ChunkStore keeps them from all others while updates are pending.
inline constexpr int64_t kUpdateSlots = 7;
// Chunks that a loader fills at one time (client/torch/tensor_writer.h); none while updates are pending.
inline constexpr int64_t kOpenChunks = 4;
// The others hold nine at most while updates are pending: the eight copies that a plan has under way, and
// one more. When none are, eight and the gradients leave four for operators that fetch on-line, who let
// go of what they hold rather than wait.
inline constexpr int64_t kSpareSlots = 24;
static_assert(kSpareSlots >= kUpdateSlots + kOpenChunks + kMaxGradientsUnderWay + 1);

}  // namespace gemini::client
