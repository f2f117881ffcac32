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
  const int64_t num_slabs = static_cast<int64_t>(slabs.size());
  if (shape.slots_per_slab <= 0 || num_slabs * shape.slots_per_slab < shape.host_slots) {
    return absl::InvalidArgumentError(absl::StrCat("the server sent ", num_slabs, " slabs of ",
                                                   shape.slots_per_slab, " slots for a space of ",
                                                   shape.host_slots, " slots"));
  }
  GEMINI_ASSIGN_OR_RETURN(memory.slots_,
                          MappedMemory::Reserve(shape.host_slots * shape.chunk_bytes));
  for (int64_t slab = 0; slab * shape.slots_per_slab < shape.host_slots; ++slab) {
    const int64_t first = slab * shape.slots_per_slab;
    const int64_t slab_bytes =
        std::min(shape.slots_per_slab, shape.host_slots - first) * shape.chunk_bytes;
    GEMINI_RETURN_IF_ERROR(
        memory.slots_.MapAt(first * shape.chunk_bytes, slabs[slab].get(), slab_bytes));
  }
  return memory;
}

}  // namespace gemini::client
