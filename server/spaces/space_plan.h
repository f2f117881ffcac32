// SPDX-License-Identifier: Apache-2.0
// Checks what a client asks of a space, before any arithmetic on its numbers.
// Units:  bytes, room in slots. Thread: any.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/shm/space_shm.h"
#include "gemini/tier.h"
#include "server/tiers/slot_dealing.h"
#include "server/wire/request_wire.h"

namespace gemini::server {

// Of each NVMe slot, in the server's own memory.
inline constexpr int64_t kBookkeepingBytes = sizeof(uint64_t) + sizeof(SlotPlace);

// A space that may be made: no field can overflow any more.
struct SpacePlan {
  std::string name;
  int64_t chunk_bytes = 0;
  int64_t num_bundles = 0;
  int64_t host_slots = 0;
  int64_t nvme_slots = 0;
  int64_t num_tensors = 0;
  int64_t host_bytes() const { return host_slots * chunk_bytes; }
  int64_t nvme_bytes() const { return nvme_slots * chunk_bytes; }
  // Of its two segments, and of what the server keeps of each NVMe slot (a word of its contents and
  // its place), in whole pages. Not charged to the lease.
  int64_t segment_bytes() const {
    return RoundUp(ClientSegmentLayout(num_bundles, num_tensors).size_bytes, kPageBytes) +
           RoundUp(static_cast<int64_t>(sizeof(ServerSegmentShm)), kPageBytes) +
           RoundUp(nvme_slots * kBookkeepingBytes, kPageBytes);
  }
};

// The most bundles of a space. It bounds the cost of reading one: 9 words a bundle, and 17 if the
// bundle is committed.
inline constexpr int64_t kMaxSpaceBundles = int64_t{1} << 20;
// The most tensors of a space. Each takes four words of the client segment, two in each intent
// slot.
inline constexpr int64_t kMaxTensors = int64_t{1} << 20;
inline constexpr int64_t kMaxSpaceNameChars = 128;

// `left` is what the lease has not yet given to spaces. INVALID_ARGUMENT: a name that is not 1 to
// 128 of [A-Za-z0-9._-], a chunk size that is no positive multiple of kPageBytes or is above
// kMaxChunkBytes, a count out of range, or many more bundles than slots. RESOURCE_EXHAUSTED: more
// than is left, with the numbers.
absl::StatusOr<SpacePlan> PlanSpace(const OpenSpaceRequest& request, const TierMap<int64_t>& left);

}  // namespace gemini::server
