// SPDX-License-Identifier: Apache-2.0
#include "client/host/chunk_places.h"

#include <utility>

#include "gemini/system/check.h"

namespace gemini::client {

ChunkPlaces::ChunkPlaces(const SpaceMemory& memory, ResidencyWriter& residency)
    : residency_(residency),
      chunks_(memory.layout().num_chunks),
      host_(memory.shape().host_slots),
      free_nvme_(memory.shape().nvme_slots),
      commits_(memory.commit_words(), memory.records(), memory.shape().num_bundles,
               memory.layout().num_records) {}

bool ChunkPlaces::IsFetchedFrom(ChunkId chunk) const {
  const SlotId slot = at(chunk).host;
  return slot != kNoSlot && host_.at(slot).ending_holds > 0;
}

void ChunkPlaces::EnterHost(ChunkId id, SlotId slot) {
  at(id).host = slot;
  host_.SetOwner(slot, id);
  if (!at(id).committed) DropNvmeCopy(id);
  Publish(id);
}

void ChunkPlaces::DropHostCopy(ChunkId id) {
  const SlotId slot = std::exchange(at(id).host, kNoSlot);
  if (slot != kNoSlot) host_.Disown(slot);
}

void ChunkPlaces::DropNvmeCopy(ChunkId id) {
  const SlotId slot = std::exchange(at(id).nvme, kNoSlot);
  at(id).loss = absl::OkStatus();
  if (slot != kNoSlot) free_nvme_.Give(slot);
}

void ChunkPlaces::Publish(ChunkId id) {
  const StoredChunk& chunk = at(id);
  const ChunkSlot in_host = {.tier = Tier::kHost, .slot = chunk.host};
  const ChunkSlot on_nvme = {.tier = Tier::kNvme, .slot = chunk.nvme};
  if (chunk.host == kNoSlot && chunk.nvme == kNoSlot) {
    residency_.SetBelow(id, std::nullopt);
  } else {
    residency_.SetBelow(id, chunk.host != kNoSlot ? in_host : on_nvme);
  }
  if (!chunk.committed) return;
  GEMINI_CHECK(chunk.device == kNoSlot);  // It has no copy below that could move.
  const BundleId bundle = BundleOf(id);
  CommitRecord record = commits_.record(bundle);
  uint64_t& place = record[static_cast<int>(KindOf(id))];
  const uint64_t now = PackChunkSlot(chunk.nvme != kNoSlot ? on_nvme : in_host);
  if (place == now) return;
  place = now;
  commits_.Commit(bundle, commits_.step(bundle), record);
}

std::optional<SlotId> ChunkPlaces::TakeNvmeSlot() {
  if (const std::optional<SlotId> slot = free_nvme_.Take(); slot) return slot;
  // A chunk that is in HOST too can do without its NVME slot: its only copy is then the one in
  // HOST.
  for (int64_t slot = 0; slot < host_.free().num_slots(); ++slot) {
    const ChunkId owner = host_.at(SlotId(slot)).owner;
    if (owner == ChunkId() || at(owner).busy || at(owner).nvme == kNoSlot) continue;
    const SlotId freed = std::exchange(at(owner).nvme, kNoSlot);
    Publish(owner);  // The record names the HOST slot before the NVME slot is reused.
    return freed;
  }
  return std::nullopt;
}

void ChunkPlaces::CommitInHost(ChunkId id, SlotId slot) {
  StoredChunk& chunk = at(id);
  if (chunk.host != slot) {
    DropHostCopy(id);
    chunk.host = slot;
    host_.SetOwner(slot, id);
  }
  DropNvmeCopy(id);
  chunk.device = kNoSlot;
  chunk.committed = true;
  residency_.SetBelow(id, ChunkSlot{.tier = Tier::kHost, .slot = slot});
}

void ChunkPlaces::CommitOnDevice(const DeviceVersion& version, int64_t step, int64_t record,
                                 const StateFormat& format) {
  commits_.CommitPrepared(version.bundle, step, record, RecordOf(version, format));
  for (const ChunkKind kind : UpdatedKinds(format)) {
    const ChunkId id = ChunkOf(version.bundle, kind);
    DropHostCopy(id);
    DropNvmeCopy(id);
    at(id).device = version.slots[kind];
    at(id).committed = true;
    residency_.SetBelow(id, std::nullopt);
  }
}

CommitRecord ChunkPlaces::RecordOf(const DeviceVersion& version, const StateFormat& format) const {
  CommitRecord record = commits_.record(version.bundle);
  for (const ChunkKind kind : UpdatedKinds(format)) {
    record[static_cast<int>(kind)] =
        PackChunkSlot({.tier = Tier::kDevice, .slot = version.slots[kind]});
  }
  return record;
}

}  // namespace gemini::client
