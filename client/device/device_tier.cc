// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_tier.h"

#include "client/device/copy_batch.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

DeviceTier::DeviceTier(DeviceBudget& session_budget, CopyEngine& engine, std::byte* arena,
                       int64_t num_slots, int64_t slot_bytes)
    : budget(session_budget),
      copies(engine),
      chunk_bytes(slot_bytes),
      stalls(engine),
      table(arena, num_slots, chunk_bytes),
      landings(engine) {}

void DeviceTier::WaitForChange() {
  ++waiters_;
  mutex.WaitFor(changed);
  --waiters_;
}

void DeviceTier::NotifyChange() {
  if (waiters_ > 0) changed.notify_all();
}

void DeviceTier::AwaitMoves() {
  while (moving > 0) WaitForChange();
}

void DeviceTier::AwaitMoveOf(const DeviceRange& range) {
  while (range.is_moving()) WaitForChange();
}

void DeviceTier::NotifyPlan() {
  lanes.notify_all();
  NotifyChange();
}

void DeviceTier::EndPlan(Divergence cause) {
  if (!progress.active()) return;
  progress.End(cause);
  NotifyPlan();
}

bool DeviceTier::PlanBrings(RangeId range) {
  const std::optional<Divergence> why_not = plan.WhyNotComing(range, table);
  if (why_not) EndPlan(*why_not);
  return !why_not;
}

void DeviceTier::Settle(DeviceRange& range) {
  if (range.state == RangeState::kSettling && copies.Done(range.settled)) {
    table.Change(range, RangeState::kResident);
  }
}

absl::Status DeviceTier::Clean(RangeId id) {
  const DeviceRange& range = table.at(id);
  // The newest bytes of what is incoming are in HOST, and its fetch may wait for the updater, which
  // calls this.
  while (range.is_moving() && !range.is_incoming()) WaitForChange();
  return WriteBack(id, RangeState::kCleaning);
}

absl::Status DeviceTier::Flush(RangeId id) {
  AwaitMoveOf(table.at(id));
  GEMINI_RETURN_IF_ERROR(CheckUnpinned(table.at(id)));
  return WriteBack(id, RangeState::kLeaving);
}

absl::Status DeviceTier::Evict(RangeId id) {
  GEMINI_RETURN_IF_ERROR(Flush(id));
  Drop(id);
  return absl::OkStatus();
}

void DeviceTier::Drop(RangeId id) {
  const DeviceRange& range = table.at(id);
  if (range.slot == kNoSlot) return;
  table.Leave(id);
  budget.Release(DeviceBudget::Use::kChunks, table.BytesOf(range));
  NotifyChange();
}

absl::Status DeviceTier::WriteBack(RangeId id, RangeState meanwhile) {
  DeviceRange& range = table.at(id);
  if (!range.dirty) {
    TellGradientIsBelow(range);
    return absl::OkStatus();
  }
  table.Change(range, meanwhile);
  range.dirty = false;  // Who writes meanwhile says so again.
  const CopyEvent after = range.all_quiet();
  const std::byte* const from = table.AddressOf(range.slot);
  ++moving;
  mutex.Unlock();
  absl::Status status;
  {
    CopyBatch batch(copies);
    for (int64_t i = 0; status.ok() && i < range.num_bundles; ++i) {
      status = batch.WriteBack(*range.store, range.chunk(i), from + range.offset_bytes(i), after)
                   .status();
    }
  }
  mutex.Lock();
  --moving;
  table.Change(range, RangeState::kSettling);
  Settle(range);
  status.Update(copies.status());  // A copy may not have been made.
  range.dirty |= !status.ok();
  table.Publish(range);
  NotifyChange();
  if (!status.ok()) return status;
  evict_bytes += range.offset_bytes(range.num_bundles);
  range.store->counters().AddEvictBytes(range.offset_bytes(range.num_bundles));
  TellGradientIsBelow(range);
  return absl::OkStatus();
}

void DeviceTier::TellGradientIsBelow(const DeviceRange& range) {
  for (int64_t i = 0; range.kind == ChunkKind::kGrad && i < range.num_bundles; ++i) {
    range.store->updates().GradientArrived(BundleOf(range.chunk(i)));
  }
}

void DeviceTier::BeginFetch(RangeId id, SlotId slot, bool is_online) {
  table.TakeSlots(id, slot, RangeState::kIncoming);
  table.at(id).is_online = is_online;
  ++moving;
}

absl::StatusOr<CopyEvent> DeviceTier::CopyIn(RangeId id) {
  DeviceRange& range = table.at(id);
  CopyEvent last;
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    const ChunkId chunk = range.chunk(i);
    mutex.Unlock();
    landings.AwaitRoom();
    mutex.Lock();
    std::byte* const to = table.AddressOf(range, i);
    const CopyEvent after = table.FetchableAfter(range, i);
    range.acquiring = i;
    mutex.Unlock();
    absl::StatusOr<HostChunk> host = range.store->Acquire(chunk);
    // Moments are zeros until the first update.
    if (absl::IsNotFound(host.status()) && IsMoment(range.kind)) host = HostChunk();
    const bool has_bytes = host.ok() && *host;
    if (has_bytes) {
      // From memory that is not registered yet, CUDA may copy before it returns.
      last = copies.Copy(CopyStream::kFetch, to, host->data(), range.payload_bytes, after,
                         range.store->timeline().CopyOf(chunk));
      range.store->counters().AddFetchBytes(range.payload_bytes);
      if (!copies.Done(last)) landings.Add(last, *std::move(host));
    } else if (host.ok()) {
      last = copies.Copy(CopyStream::kFetch, to, nullptr, range.payload_bytes, after);
    } else {
      copies.Wait(last);  // The next owner of the slots must not find a copy in flight.
    }
    mutex.Lock();
    range.acquiring = -1;
    if (!host.ok()) return host.status();
    if (has_bytes) fetch_bytes += range.payload_bytes;
  }
  return last;
}

void DeviceTier::EndFetch(RangeId id, const CopyEvent& last, bool enters) {
  DeviceRange& range = table.at(id);
  if (enters && range.state == RangeState::kIncoming) {
    table.Enter(id, last);
  } else {
    range.settled = last;
    Drop(id);
  }
  --moving;
  NotifyChange();
}

}  // namespace gemini::client
