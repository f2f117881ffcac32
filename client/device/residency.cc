// SPDX-License-Identifier: Apache-2.0
#include "client/device/residency.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/device/online_placement.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

Residency::Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
                     int64_t chunk_bytes)
    : tier_(budget, copies, arena, num_slots, chunk_bytes) {}

RangeId Residency::AddRange(ChunkStore& store, BundleId first, int64_t num_bundles,
                            ChunkKind kind) {
  MutexLock lock(tier_.mutex);
  return tier_.table.Add(store, first, num_bundles, kind);
}

absl::StatusOr<RangeId> Residency::FindRange(const ChunkStore& store, BundleId first,
                                             int64_t num_bundles, ChunkKind kind) const {
  MutexLock lock(tier_.mutex);
  return tier_.table.Find(store, first, num_bundles, kind);
}

absl::Status Residency::Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses) {
  GEMINI_CHECK(ranges.size() == addresses.size());
  MutexLock lock(tier_.mutex);
  bool all_resident = true;
  for (const RangeId id : ranges) {
    const DeviceRange& range = tier_.table.at(id);
    all_resident &= range.state == RangeState::kResident;
    if (range.kind != ChunkKind::kGrad) continue;
    // Who pins a gradient may write to it. The wait may release the lock: Await looks at all again.
    GEMINI_RETURN_IF_ERROR(AwaitUpdateOf(range));
    all_resident = false;
  }
  if (!all_resident) [[unlikely]]
    GEMINI_RETURN_IF_ERROR(Await(ranges));
  bool all_settled = true;
  CopyEvent arriving;
  StallCause cause = StallCause::kTransfer;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const DeviceRange& range = tier_.table.at(ranges[i]);
    if (range.state != RangeState::kResident) [[unlikely]] {
      all_settled = false;
      arriving.Join(range.settled);
      if (range.is_online) cause = StallCause::kOnline;
    }
    addresses[i] = tier_.table.Pin(ranges[i]);
  }
  if (!all_settled) [[unlikely]] {
    // Pinned, they stay while others have the lock.
    SpaceCounters& counters = tier_.table.at(ranges[0]).store->counters();
    tier_.mutex.Unlock();
    OperatorPoint since = tier_.stalls.Now();
    tier_.copies.MakeOperatorsWait(arriving);
    tier_.stalls.Add(counters, cause, std::move(since));
    tier_.mutex.Lock();
  }
  return absl::OkStatus();
}

void Residency::Unpin(RangeId id, bool dirty, const CopyEvent& after) {
  MutexLock lock(tier_.mutex);
  tier_.table.Unpin(id, dirty, after);
}

absl::Status Residency::Await(absl::Span<const RangeId> ids) {
  const auto all_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier_.mutex) {
    bool all = true;
    for (const RangeId id : ids) {
      tier_.Settle(tier_.table.at(id));
      all &= tier_.table.at(id).is_there();
    }
    return all;
  };
  SpaceCounters& counters = tier_.table.at(ids[0]).store->counters();
  std::optional<OperatorPoint> since;
  while (!all_there()) {
    if (!since) since = tier_.stalls.Now();
    const absl::StatusOr<StallCause> cause = AwaitOne(ids);
    // The room of non-model data that is on its way out will be free for chunks.
    const bool awaits_room = absl::IsResourceExhausted(cause.status()) && ReleasePending();
    since = tier_.stalls.Add(counters,
                             awaits_room ? StallCause::kRoom : cause.value_or(StallCause::kOnline),
                             *std::move(since));
    if (!awaits_room) GEMINI_RETURN_IF_ERROR(cause.status());
  }
  if (since) {
    const DeviceBudget& budget = tier_.budget;
    counters.SetDeviceBytes(budget.used_bytes() + budget.outside_bytes(),
                            budget.non_model_bytes() + budget.outside_bytes());
  }
  return absl::OkStatus();
}

bool Residency::ReleasePending() {
  const std::function<bool()> release = pending_release_;
  if (!release) return false;
  tier_.mutex.Unlock();
  const bool released = release();
  tier_.mutex.Lock();
  return released;
}

absl::StatusOr<StallCause> Residency::AwaitOne(absl::Span<const RangeId> ids) {
  RangeId absent;
  for (const RangeId id : ids) {
    const DeviceRange& range = tier_.table.at(id);
    switch (range.state) {
      case RangeState::kResident:
      case RangeState::kSettling:
      case RangeState::kCleaning:
        continue;
      case RangeState::kIncoming:
      case RangeState::kDiscarded:
      case RangeState::kWriting: {
        const StallCause cause =
            range.is_online ? StallCause::kOnline : tier_.plan.WaitingFor(tier_.table);
        tier_.WaitForChange();
        return cause;
      }
      case RangeState::kLeaving:
        tier_.WaitForChange();
        return StallCause::kRoom;
      case RangeState::kAbsent:
        if (range.host_writers > 0) {
          tier_.WaitForChange();
          return StallCause::kUpdate;
        }
        break;
      case RangeState::kReserved:  // Its room is for other bytes than those that it has.
        tier_.Drop(id);
        break;
    }
    absent = id;
  }
  if (tier_.progress.active() && tier_.PlanBrings(absent)) {
    const StallCause cause = tier_.plan.WaitingFor(tier_.table);
    tier_.WaitForChange();
    return cause;
  }
  // What moves holds slots and HOST memory that on-line placement counts on.
  if (tier_.moving > 0) {
    tier_.WaitForChange();
    return StallCause::kTransfer;
  }
  for (const RangeId id : ids) {
    const DeviceRange& range = tier_.table.at(id);
    if (range.is_there()) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      if (!range.store->AwaitsCommit(range.chunk(i))) continue;
      tier_.mutex.Unlock();
      const absl::Status status = range.store->updates().AwaitCommit(BundleOf(range.chunk(i)));
      tier_.mutex.Lock();
      if (!status.ok()) return status;
      return StallCause::kUpdate;
    }
  }
  GEMINI_RETURN_IF_ERROR(BringIn(tier_, ids));
  return StallCause::kOnline;
}

void Residency::AwaitWrite(RangeId id, PendingWrite& write) {
  if (write.Done()) return write.Wait();
  OperatorPoint since = tier_.stalls.Now();
  write.Wait();
  MutexLock lock(tier_.mutex);
  tier_.stalls.Add(tier_.table.at(id).store->counters(), StallCause::kTransfer, std::move(since));
}

absl::StatusOr<PendingWrite> Residency::BeginWrite(RangeId id, int64_t offset_bytes,
                                                   const void* source, int64_t size_bytes,
                                                   bool alone) {
  MutexLock lock(tier_.mutex);
  DeviceRange& range = tier_.table.at(id);
  const int64_t range_bytes = range.offset_bytes(range.num_bundles);
  if (offset_bytes < 0 || size_bytes < 0 || offset_bytes > range_bytes - size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a write of ", size_bytes, " bytes at ",
                                                   offset_bytes, " into a range of ", range_bytes));
  }
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    if (!range.store->IsCommitted(range.chunk(i))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("chunk ", range.chunk(i).value(), " is committed: pin it to write to it"));
  }
  GEMINI_RETURN_IF_ERROR(AwaitUpdateOf(range));
  const std::byte* const from = static_cast<const std::byte*>(source);
  if (alone) AwaitRoom(id);
  tier_.AwaitMoveOf(range);
  if (range.state == RangeState::kReserved && !alone) tier_.Drop(id);
  if (range.state == RangeState::kAbsent) {
    return BeginHostWrite(range, offset_bytes, from, size_bytes);
  }
  WriteOnDevice(id, offset_bytes, from, size_bytes);
  return PendingWrite();
}

absl::Status Residency::AwaitUpdateOf(const DeviceRange& range) {
  for (int64_t i = 0; range.kind == ChunkKind::kGrad && i < range.num_bundles; ++i) {
    const BundleId bundle = BundleOf(range.chunk(i));
    if (!range.store->AwaitsCommit(ChunkOf(bundle, ChunkKind::kParam))) continue;
    OperatorPoint since = tier_.stalls.Now();
    tier_.mutex.Unlock();
    const absl::Status status = range.store->updates().AwaitCommit(bundle);
    tier_.mutex.Lock();
    tier_.stalls.Add(range.store->counters(), StallCause::kUpdate, std::move(since));
    GEMINI_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

void Residency::AwaitRoom(RangeId id) {
  const DeviceRange& range = tier_.table.at(id);
  std::optional<OperatorPoint> since;
  // One of the step before may be on its way out still.
  while (range.state != RangeState::kReserved && tier_.progress.active() &&
         tier_.plan.KeepsGradient(id)) {
    if (!since) since = tier_.stalls.Now();
    if (tier_.PlanBrings(id)) tier_.WaitForChange();
  }
  if (since) tier_.stalls.Add(range.store->counters(), StallCause::kRoom, *std::move(since));
}

void Residency::WriteOnDevice(RangeId id, int64_t offset_bytes, const std::byte* from,
                              int64_t size_bytes) {
  DeviceRange& range = tier_.table.at(id);
  CopyEvent before = range.quiet();
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    before.Join(tier_.table.vacated(SlotId(range.slot.value() + i)));
  }
  std::byte* const to = tier_.table.AddressOf(range.slot) + offset_bytes;
  tier_.table.Change(range, RangeState::kWriting);
  ++tier_.moving;
  tier_.mutex.Unlock();
  tier_.copies.MakeOperatorsWait(before);
  tier_.copies.CopyWithin(to, from, size_bytes);
  const CopyEvent written = tier_.copies.AfterOperators();
  tier_.mutex.Lock();
  --tier_.moving;
  range.is_online = false;
  range.dirty = true;
  tier_.table.Enter(id, written);
  tier_.Settle(range);
  tier_.table.Publish(range);
  tier_.NotifyChange();
}

absl::StatusOr<PendingWrite> Residency::BeginHostWrite(DeviceRange& range, int64_t offset_bytes,
                                                       const std::byte* from, int64_t size_bytes) {
  std::vector<HostChunk> hosts;
  CopyEvent written = tier_.copies.AfterOperators();
  written.Join(range.host_quiet);
  CopyEvent last;
  absl::Status status;
  ++range.host_writers;  // It stays absent while the lock is released.
  for (int64_t done = 0; done < size_bytes;) {
    const int64_t index = (offset_bytes + done) / range.payload_bytes;
    const int64_t inside = (offset_bytes + done) % range.payload_bytes;
    const int64_t piece = std::min(size_bytes - done, range.payload_bytes - inside);
    const ChunkId chunk = range.chunk(index);
    tier_.mutex.Unlock();
    // Who brings a late gradient may wait for a slot: those that only the caller releases must not
    // be what it waits for.
    range.store->updates().AwaitLateGradients();
    absl::StatusOr<HostChunk> host = piece == range.payload_bytes
                                         ? range.store->AcquireToOverwrite(chunk)
                                         : range.store->AcquireUncommitted(chunk);
    status = host.status();
    // To memory that is not registered yet, CUDA may copy before it returns.
    if (status.ok()) {
      last = tier_.copies.Copy(CopyStream::kEvict, host->data() + inside, from + done, piece,
                               written, range.store->timeline().CopyOf(chunk));
    }
    tier_.mutex.Lock();
    if (!status.ok()) break;
    range.host_quiet.Join(last);
    tier_.evict_bytes += piece;
    range.store->counters().AddEvictBytes(piece);
    hosts.push_back(*std::move(host));
    done += piece;
  }
  --range.host_writers;
  tier_.NotifyChange();
  PendingWrite write(tier_.copies, last, std::move(hosts));
  if (status.ok()) return write;
  tier_.mutex.Unlock();
  write.Wait();
  tier_.mutex.Lock();
  return status;
}

absl::Status Residency::Write(RangeId id, int64_t offset_bytes, const void* source,
                              int64_t size_bytes) {
  GEMINI_ASSIGN_OR_RETURN(PendingWrite write, BeginWrite(id, offset_bytes, source, size_bytes));
  write.Wait();
  return absl::OkStatus();
}

absl::Status Residency::Flush(RangeId id) {
  MutexLock lock(tier_.mutex);
  return tier_.Flush(id);
}

absl::Status Residency::WriteBack(RangeId id) {
  MutexLock lock(tier_.mutex);
  return tier_.Clean(id);
}

absl::Status Residency::Drop(RangeId id) {
  MutexLock lock(tier_.mutex);
  DeviceRange& range = tier_.table.at(id);
  while (range.is_moving() && !range.is_incoming()) tier_.WaitForChange();
  GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
  if (!range.is_incoming()) {
    tier_.Drop(id);
  } else if (range.state == RangeState::kIncoming) {
    // Not waited for: its fetch may wait for the very update that made it stale.
    RangeTable::Change(range, RangeState::kDiscarded);
  }
  return absl::OkStatus();
}

bool Residency::MakeRoom(int64_t size_bytes, absl::Status* why) {
  const DeviceBudget& budget = tier_.budget;
  {
    MutexLock lock(tier_.mutex);
    while (size_bytes > budget.budget_bytes() - budget.used_bytes() && ReleasePending()) {
    }
  }
  return gemini::client::MakeRoom(tier_, size_bytes, why);
}

absl::Status Residency::SetBudget(int64_t device_bytes) {
  return gemini::client::SetBudget(tier_, device_bytes);
}

void Residency::set_pending_release(std::function<bool()> release) {
  MutexLock lock(tier_.mutex);
  pending_release_ = std::move(release);
}

SlotId Residency::DeviceSlot(RangeId range) const {
  MutexLock lock(tier_.mutex);
  return tier_.table.at(range).slot;
}

int64_t Residency::num_slots() const {
  MutexLock lock(tier_.mutex);
  return tier_.table.slots().num_usable();
}

ResidencyStats Residency::stats() const {
  MutexLock lock(tier_.mutex);
  ResidencyStats stats = {.fetch_bytes = tier_.fetch_bytes,
                          .evict_bytes = tier_.evict_bytes,
                          .stall_ns = tier_.stalls.total_ns(),
                          .pinned_peak_bytes = tier_.table.pinned_peak_bytes()};
  for (int cause = 0; cause < kNumStallCauses; ++cause) {
    stats.stall_by_cause_ns[cause] = tier_.stalls.of(static_cast<StallCause>(cause));
  }
  return stats;
}

}  // namespace gemini::client
