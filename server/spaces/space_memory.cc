// SPDX-License-Identifier: Apache-2.0
#include "server/spaces/space_memory.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/shm/space_shm.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {

absl::Status CheckRoomFor(const SpacePlan& plan, const PromisedDevice& promised) {
  return CheckHostRoom(ReadHostMemories(), plan.host_bytes() + plan.segment_bytes(), promised,
                       /*charged_here=*/true, absl::StrCat("space ", plan.name),
                       "ask for less, or pass --nvme");
}

absl::StatusOr<SpaceMemory> MakeSpaceMemory(const SpacePlan& plan, const PromisedDevice& promised,
                                            TierStore& host_store, TierStore& nvme_store) {
  SpaceMemory memory;
  const int64_t client_bytes = ClientSegmentLayout(plan.num_bundles, plan.num_tensors).size_bytes;
  // Beyond what the machine has, allocating ends in no error, but in the OOM killer.
  GEMINI_RETURN_IF_ERROR(CheckRoomFor(plan, promised));
  GEMINI_ASSIGN_OR_RETURN(
      memory.client_segment,
      MakeSealedMemfd("gemini-client-segment", client_bytes, MemfdPages::kAllocated));
  GEMINI_ASSIGN_OR_RETURN(memory.client_map,
                          PeerMemory::Map(memory.client_segment.get(), client_bytes));
  GEMINI_ASSIGN_OR_RETURN(
      ServerWritableMemfd server_segment,
      MakeServerWritableMemfd("gemini-server-segment", sizeof(ServerSegmentShm)));
  memory.server_segment = std::move(server_segment.fd);
  memory.server_map = std::move(server_segment.memory);
  memory.kick = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!memory.kick) return ErrnoStatus(errno, "eventfd");
  memory.nvme_contents.resize(plan.nvme_slots);
  GEMINI_ASSIGN_OR_RETURN(memory.nvme, nvme_store.Make(plan.chunk_bytes, plan.nvme_slots));
  memory.nvme_places = DealSlots(memory.nvme);
  absl::StatusOr<TierGrant> host = host_store.Make(plan.chunk_bytes, plan.host_slots);
  if (!host.ok()) {
    nvme_store.Destroy(std::move(memory.nvme));
    return host.status();
  }
  memory.host = *std::move(host);
  return memory;
}

void DestroySpaceMemory(SpaceMemory memory, TierStore& host_store, TierStore& nvme_store) {
  host_store.Destroy(std::move(memory.host));
  nvme_store.Destroy(std::move(memory.nvme));
  const int64_t client_bytes = memory.client_map.size_bytes();
  memory.client_map = PeerMemory();
  DestroyMemfd(std::move(memory.client_segment), client_bytes);
}

}  // namespace gemini::server
