// SPDX-License-Identifier: Apache-2.0
#include "client/device/range_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"

namespace gemini::client {
namespace {

bool MayChange(RangeState from, RangeState to) {
  using enum RangeState;
  switch (from) {
    case kAbsent:
      return to == kReserved || to == kIncoming;
    case kReserved:
      return to == kWriting || to == kAbsent;
    case kIncoming:
      return to == kSettling || to == kDiscarded || to == kAbsent;
    case kDiscarded:
      return to == kAbsent;
    case kWriting:
    case kCleaning:
      return to == kSettling;
    case kSettling:
    case kResident:
      return to == kResident || to == kWriting || to == kCleaning || to == kLeaving ||
             to == kAbsent;
    case kLeaving:
      return to == kSettling;
  }
  return false;
}

}  // namespace

absl::Status CheckUnpinned(const DeviceRange& range) {
  if (range.pins == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("chunk ", range.chunk(0).value(), " of space ",
                                                    range.store->name(), " is pinned ", range.pins,
                                                    " times: an operator is using it"));
}

RangeTable::RangeTable(std::byte* arena, int64_t num_slots, int64_t chunk_bytes)
    : arena_(arena), chunk_bytes_(chunk_bytes), slots_(num_slots), vacated_(num_slots) {}

RangeId RangeTable::Add(ChunkStore& store, BundleId first, int64_t num_bundles, ChunkKind kind) {
  GEMINI_CHECK(store.chunk_bytes() == chunk_bytes_ && num_bundles > 0 && first.value() >= 0 &&
               first.value() + num_bundles <= store.num_bundles());
  DeviceRange range;
  static_cast<RangeChunks&>(range) = {.store = &store,
                                      .first = first,
                                      .num_bundles = num_bundles,
                                      .kind = kind,
                                      .payload_bytes = store.memory().shape().payload_bytes()};
  const auto known = range_of_chunk_.find({&store, range.chunk(0)});
  if (known != range_of_chunk_.end()) {
    const DeviceRange& same = at(known->second);
    GEMINI_CHECK(same.first == first && same.num_bundles == num_bundles);
    return known->second;
  }
  const RangeId id(size());
  for (int64_t i = 0; i < num_bundles; ++i) {
    GEMINI_CHECK(range_of_chunk_.emplace(std::pair(&store, range.chunk(i)), id).second);
  }
  ranges_.push_back(range);
  unpinned_.Grow();
  return id;
}

absl::StatusOr<RangeId> RangeTable::Find(const ChunkStore& store, BundleId first,
                                         int64_t num_bundles, ChunkKind kind) const {
  const auto found = range_of_chunk_.find({&store, ChunkOf(first, kind)});
  if (found != range_of_chunk_.end()) {
    const DeviceRange& range = at(found->second);
    if (range.first == first && range.num_bundles == num_bundles) return found->second;
  }
  return absl::NotFoundError(absl::StrCat("space ", store.name(), " has no ", ChunkKindName(kind),
                                          " range of ", num_bundles, " bundles from ",
                                          first.value()));
}

void RangeTable::Change(DeviceRange& range, RangeState to) {
  GEMINI_CHECK(MayChange(range.state, to));
  range.state = to;
}

void RangeTable::TakeSlots(RangeId id, SlotId slot, RangeState to) {
  DeviceRange& range = at(id);
  Change(range, to);
  slots_.Take(slot, range.num_bundles, id.value());
  range.slot = slot;
  if (to == RangeState::kReserved) unpinned_.Add(id.value());
}

void RangeTable::Enter(RangeId id, const CopyEvent& settled) {
  DeviceRange& range = at(id);
  Change(range, RangeState::kSettling);
  range.settled = settled;
  range.last_use = ++clock_;
  if (unpinned_.contains(id.value())) unpinned_.Remove(id.value());
  if (range.pins == 0) unpinned_.Add(id.value());
  if (std::exchange(range.is_published, true)) return;
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    range.store->residency_writer().EnterDevice(range.chunk(i), SlotId(range.slot.value() + i));
  }
}

void RangeTable::Leave(RangeId id) {
  DeviceRange& range = at(id);
  if (range.slot == kNoSlot) return;
  Change(range, RangeState::kAbsent);
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    vacated_[range.slot.value() + i].Join(range.quiet());
  }
  range.host_quiet.Join(range.settled);
  range.settled = range.used = {};
  slots_.Free(range.slot, range.num_bundles);
  range.slot = kNoSlot;
  range.dirty = range.is_online = false;
  if (unpinned_.contains(id.value())) unpinned_.Remove(id.value());
  if (!std::exchange(range.is_published, false)) return;
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    range.store->residency_writer().LeaveDevice(range.chunk(i));
  }
}

void RangeTable::Unpin(RangeId id, bool dirty, const CopyEvent& after) {
  DeviceRange& range = at(id);
  GEMINI_CHECK(range.pins > 0);
  range.dirty |= dirty;
  range.used.Join(after);
  if (--range.pins == 0) {
    range.last_use = ++clock_;
    unpinned_.Add(id.value());
    pinned_bytes_ -= BytesOf(range);
  }
  Publish(range);
}

RangeId RangeTable::NextEvictable(RangeId behind) const {
  int64_t id = behind == RangeId() ? unpinned_.oldest() : unpinned_.newer(behind.value());
  while (id != LruList::kNone && ranges_[id].is_moving()) id = unpinned_.newer(id);
  return RangeId(id);
}

bool RangeTable::IsOccupied(RangeId id, SlotId slot) const {
  return at(id).state != RangeState::kAbsent || !slots_.IsFree(slot, at(id).num_bundles);
}

CopyEvent RangeTable::FetchableAfter(const DeviceRange& range, int64_t index) const {
  CopyEvent after = range.host_quiet;
  const auto [begin, last] = range.slots_of(index);
  for (int64_t i = begin; i <= last; ++i) after.Join(vacated_[range.slot.value() + i]);
  return after;
}

}  // namespace gemini::client
