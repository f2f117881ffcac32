// SPDX-License-Identifier: Apache-2.0
#include "client/host/space_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::StatusOr<SpaceMemory> SpaceMemory::Map(const SpaceShape& shape, int client_segment,
                                             int server_segment, absl::Span<const UniqueFd> slabs) {
  SpaceMemory memory(shape);
  const int64_t client_bytes = memory.layout_.size_bytes;
  GEMINI_ASSIGN_OR_RETURN(
      memory.client_segment_,
      MappedMemory::Map(client_segment, client_bytes, MappedMemory::Access::kReadWrite));
  GEMINI_ASSIGN_OR_RETURN(
      memory.server_segment_,
      MappedMemory::Map(server_segment, sizeof(ServerSegmentShm), MappedMemory::Access::kReadOnly));
  if (shape.host_slots == 0) return memory;
  const int64_t num_slabs =
      shape.slots_per_slab <= 0 ? -1 : (shape.host_slots - 1) / shape.slots_per_slab + 1;
  if (num_slabs < 0 || static_cast<int64_t>(slabs.size()) < num_slabs) {
    return absl::InvalidArgumentError(absl::StrCat("the server sent ", slabs.size(), " slabs of ",
                                                   shape.slots_per_slab, " slots for a space of ",
                                                   shape.host_slots, " slots"));
  }
  constexpr int64_t kAlignment = MappedMemory::kReservationAlignment;
  const int64_t full_bytes = std::min(shape.slots_per_slab, shape.host_slots) * shape.chunk_bytes;
  memory.slab_stride_ = (full_bytes + kAlignment - 1) / kAlignment * kAlignment;
  GEMINI_ASSIGN_OR_RETURN(memory.slots_, MappedMemory::Reserve(num_slabs * memory.slab_stride_));
  for (int64_t slab = 0; slab < num_slabs; ++slab) {
    const int64_t slots =
        std::min(shape.slots_per_slab, shape.host_slots - slab * shape.slots_per_slab);
    GEMINI_RETURN_IF_ERROR(memory.slots_.MapAt(slab * memory.slab_stride_, slabs[slab].get(),
                                               slots * shape.chunk_bytes));
  }
  return memory;
}

}  // namespace gemini::client
