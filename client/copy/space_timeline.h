// SPDX-License-Identifier: Apache-2.0
// Records what the parts of one space did, in the session's timeline.
// Thread: any. A write is lock-free and makes no system call.
// Units: nanoseconds of TimelineNowNs.
#pragma once
#include <cstdint>

#include "client/copy/copy_engine.h"
#include "client/copy/timeline_clock.h"
#include "gemini/ids.h"
#include "gemini/shm/timeline_shm.h"

namespace gemini::client {

struct SpaceTimeline {
  TimelineShm* ring = nullptr;  // Outlives this. If null, nothing is written.
  uint16_t space = 0;           // Its index in the session.

  CopySubject CopyOf(ChunkId chunk) const { return {space, static_cast<uint32_t>(chunk.value())}; }

  // Adds an event that ends now. `subject` is a chunk or bundle of the space, as TimelineLane says.
  void Add(TimelineLane lane, int64_t subject, int64_t begin_ns, int64_t size_bytes) const {
    AddFromTo(lane, subject, begin_ns, TimelineNowNs(), size_bytes);
  }
  void AddFromTo(TimelineLane lane, int64_t subject, int64_t begin_ns, int64_t end_ns,
                 int64_t size_bytes) const {
    if (ring == nullptr) return;
    WriteTimelineEvent(*ring, {.lane = lane,
                               .space = space,
                               .subject = static_cast<uint32_t>(subject),
                               .begin_ns = begin_ns,
                               .end_ns = end_ns,
                               .size_bytes = size_bytes});
  }
};

}  // namespace gemini::client
