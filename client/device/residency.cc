// SPDX-License-Identifier: Apache-2.0
#include "client/device/residency.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::Status CheckUnpinned(const DeviceRange& range) {
  if (range.pins == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("chunk ", range.chunk(0).value(), " of space ",
                                                    range.store->name(), " is pinned ", range.pins,
                                                    " times: an operator is using it"));
}

Residency::Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
                     int64_t chunk_bytes)
    : budget_(budget),
      copies_(copies),
      arena_(arena),
      num_arena_slots_(num_slots),
      chunk_bytes_(chunk_bytes),
      stalls_(copies),
      slots_(num_slots),
      vacated_(num_slots),
      landings_(copies) {}

RangeId Residency::AddRange(ChunkStore& store, BundleId first, int64_t num_bundles,
                            ChunkKind kind) {
  GEMINI_CHECK(store.chunk_bytes() == chunk_bytes_ && num_bundles > 0 && first.value() >= 0 &&
               first.value() + num_bundles <= store.num_bundles());
  MutexLock lock(mutex_);
  Range range;
  static_cast<RangeChunks&>(range) = {.store = &store,
                                      .first = first,
                                      .num_bundles = num_bundles,
                                      .kind = kind,
                                      .payload_bytes = store.memory().shape().payload_bytes()};
  const auto known = range_of_chunk_.find({&store, range.chunk(0)});
  if (known != range_of_chunk_.end()) {
    const Range& same = ranges_[known->second];
    GEMINI_CHECK(same.first == first && same.num_bundles == num_bundles);
    return RangeId(known->second);
  }
  const int64_t id = static_cast<int64_t>(ranges_.size());
  for (int64_t i = 0; i < num_bundles; ++i) {
    GEMINI_CHECK(range_of_chunk_.emplace(std::pair(&store, range.chunk(i)), id).second);
  }
  ranges_.push_back(range);
  evictable_.Grow();
  return RangeId(id);
}

absl::Status Residency::Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses) {
  GEMINI_CHECK(ranges.size() == addresses.size());
  MutexLock lock(mutex_);
  // Who pins a gradient may write to it.
  for (const RangeId id : ranges) GEMINI_RETURN_IF_ERROR(AwaitUpdateOf(ranges_[id.value()]));
  for (const RangeId id : ranges) {
    if (ranges_[id.value()].presence == Presence::kResident) [[likely]]
      continue;
    GEMINI_RETURN_IF_ERROR(Await(ranges));
    break;
  }
  bool all_settled = true;
  CopyEvent arriving;
  StallCause cause = StallCause::kTransfer;
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range& range = ranges_[ranges[i].value()];
    if (range.presence == Presence::kSettling) [[unlikely]] {
      all_settled = false;
      arriving.Join(range.settled);
      if (range.is_online) cause = StallCause::kOnline;
    }
    if (range.pins++ == 0) {
      if (!range.busy) evictable_.Remove(ranges[i].value());
      pinned_bytes_ += BytesOf(range);
    }
    Publish(range);
    addresses[i] = AddressOf(range.slot);
  }
  stats_.pinned_peak_bytes = std::max(stats_.pinned_peak_bytes, pinned_bytes_);
  if (!all_settled) [[unlikely]] {
    // Pinned, they stay while others have the lock.
    SpaceCounters& counters = ranges_[ranges[0].value()].store->counters();
    mutex_.Unlock();
    OperatorPoint since = stalls_.Now();
    copies_.MakeOperatorsWait(arriving);
    stalls_.Add(counters, cause, std::move(since));
    mutex_.Lock();
  }
  return absl::OkStatus();
}

void Residency::Unpin(RangeId id, bool dirty, const CopyEvent& after) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  GEMINI_CHECK(range.pins > 0);
  range.dirty |= dirty;
  range.used.Join(after);
  if (--range.pins == 0) {
    range.last_use = ++clock_;
    if (!range.busy) evictable_.Add(id.value());
    pinned_bytes_ -= BytesOf(range);
  }
  Publish(range);
}

void Residency::WaitForChange() {
  ++waiters_;
  mutex_.WaitFor(changed_);
  --waiters_;
}

void Residency::NotifyChange() {
  if (waiters_ > 0) changed_.notify_all();
}

void Residency::WaitWhileMoving(const Range& range) {
  while (range.presence == Presence::kIncoming || range.presence == Presence::kLeaving ||
         range.busy) {
    WaitForChange();
  }
}

void Residency::Settle(Range& range) {
  if (range.presence == Presence::kSettling && copies_.Done(range.settled)) {
    range.presence = Presence::kResident;
  }
}

absl::Status Residency::Await(absl::Span<const RangeId> ids) {
  const auto all_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool all = true;
    for (const RangeId id : ids) {
      Settle(ranges_[id.value()]);
      all &= ranges_[id.value()].is_there();
    }
    return all;
  };
  const Range& first = ranges_[ids[0].value()];
  std::optional<OperatorPoint> since;
  while (!all_there()) {
    if (!since) since = stalls_.Now();
    const absl::StatusOr<StallCause> cause = AwaitOne(ids);
    absl::Status status = cause.status();
    if (cause.ok() && *cause == StallCause::kOnline) status = BringIn(ids);
    since = stalls_.Add(first.store->counters(), cause.value_or(StallCause::kOnline),
                        *std::move(since));
    GEMINI_RETURN_IF_ERROR(status);
  }
  if (since) {
    const int64_t outside_bytes = budget_.outside_bytes();
    first.store->counters().SetDeviceBytes(budget_.used_bytes() + outside_bytes,
                                           budget_.non_model_bytes() + outside_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<StallCause> Residency::AwaitOne(absl::Span<const RangeId> ids) {
  RangeId absent;
  for (const RangeId id : ids) {
    const Range& range = ranges_[id.value()];
    switch (range.presence) {
      case Presence::kResident:
      case Presence::kSettling:
        break;
      case Presence::kIncoming: {
        const StallCause cause =
            planned_ == nullptr ? StallCause::kTransfer : planned_->WaitingFor();
        WaitForChange();
        return cause;
      }
      case Presence::kLeaving:
        WaitForChange();
        return StallCause::kRoom;
      case Presence::kAbsent:
        if (range.host_writers > 0) {
          WaitForChange();
          return StallCause::kUpdate;
        }
        absent = id;
        break;
      case Presence::kReserved:  // Its room is for other bytes than those that it has.
        Leave(id.value());
        budget_.Release(DeviceBudget::Use::kChunks, BytesOf(range));
        absent = id;
        break;
    }
  }
  if (planned_ != nullptr && planned_->active()) {
    const bool blocked = waiting_fetch_ && IsOccupied(*waiting_fetch_);
    if (planned_->IsComing(absent, blocked)) {
      const StallCause cause = planned_->WaitingFor();
      WaitForChange();
      return cause;
    }
    NotifyChange();  // The plan has ended: its fetch need not wait for slots.
  }
  // What the plan began holds slots and HOST memory that on-line placement counts on.
  if (moving_ > 0) {
    WaitForChange();
    return StallCause::kTransfer;
  }
  for (const RangeId id : ids) {
    const Range& range = ranges_[id.value()];
    if (range.is_there()) continue;
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      if (!range.store->AwaitsCommit(range.chunk(i))) continue;
      // Not with the lock held: others pin meanwhile.
      mutex_.Unlock();
      const absl::Status status = range.store->updates().AwaitCommit(BundleOf(range.chunk(i)));
      mutex_.Lock();
      if (!status.ok()) return status;
      return StallCause::kUpdate;
    }
  }
  return StallCause::kOnline;
}

void Residency::AwaitWrite(RangeId range, PendingWrite& write) {
  if (write.Done()) return write.Wait();
  OperatorPoint since = stalls_.Now();
  write.Wait();
  stalls_.Add(Describe(range).store->counters(), StallCause::kTransfer, std::move(since));
}

absl::StatusOr<PendingWrite> Residency::BeginWrite(RangeId id, int64_t offset_bytes,
                                                   const void* source, int64_t size_bytes,
                                                   bool alone) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
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
  WaitWhileMoving(range);
  if (range.presence == Presence::kReserved && !alone) {
    Leave(id.value());
    budget_.Release(DeviceBudget::Use::kChunks, BytesOf(range));
  }
  if (range.presence == Presence::kAbsent) {
    return BeginHostWrite(range, offset_bytes, from, size_bytes);
  }
  WriteOnDevice(id.value(), offset_bytes, from, size_bytes);
  return PendingWrite();
}

absl::Status Residency::AwaitUpdateOf(const Range& range) {
  for (int64_t i = 0; range.kind == ChunkKind::kGrad && i < range.num_bundles; ++i) {
    const BundleId bundle = BundleOf(range.chunk(i));
    if (!range.store->AwaitsCommit(ChunkOf(bundle, ChunkKind::kParam))) continue;
    OperatorPoint since = stalls_.Now();
    mutex_.Unlock();
    const absl::Status status = range.store->updates().AwaitCommit(bundle);
    mutex_.Lock();
    stalls_.Add(range.store->counters(), StallCause::kUpdate, std::move(since));
    GEMINI_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

void Residency::AwaitRoom(RangeId id) {
  const Range& range = ranges_[id.value()];
  std::optional<OperatorPoint> since;
  // One of the step before may be on its way out still.
  while (range.presence != Presence::kReserved && planned_ != nullptr && planned_->active() &&
         planned_->KeepsGradient(id)) {
    if (!since) since = stalls_.Now();
    const bool blocked = waiting_fetch_ && IsOccupied(*waiting_fetch_);
    if (planned_->IsComing(id, blocked)) {
      WaitForChange();
    } else {
      NotifyChange();  // The plan has ended.
    }
  }
  if (since) stalls_.Add(range.store->counters(), StallCause::kRoom, *std::move(since));
}

void Residency::WriteOnDevice(int64_t id, int64_t offset_bytes, const std::byte* from,
                              int64_t size_bytes) {
  Range& range = ranges_[id];
  const bool is_new = range.presence == Presence::kReserved;
  CopyEvent before = range.quiet();
  for (int64_t i = 0; is_new && i < range.num_bundles; ++i) {
    before.Join(vacated_[range.slot.value() + i]);
  }
  range.presence = Presence::kIncoming;
  range.busy = true;
  ++moving_;
  if (evictable_.contains(id)) evictable_.Remove(id);
  mutex_.Unlock();
  copies_.MakeOperatorsWait(before);
  copies_.CopyWithin(AddressOf(range.slot) + offset_bytes, from, size_bytes);
  const CopyEvent written = copies_.AfterOperators();
  mutex_.Lock();
  range.busy = false;
  --moving_;
  range.presence = Presence::kSettling;
  range.settled = written;
  range.is_online = false;
  Settle(range);
  range.dirty = true;
  if (is_new) {
    Enter(id, range.slot);
  } else if (range.pins == 0) {
    evictable_.Add(id);
  }
  Publish(range);
  NotifyChange();
}

absl::StatusOr<PendingWrite> Residency::BeginHostWrite(Range& range, int64_t offset_bytes,
                                                       const std::byte* from, int64_t size_bytes) {
  std::vector<HostChunk> hosts;
  CopyEvent written = copies_.AfterOperators();
  written.Join(range.host_quiet);
  CopyEvent last;
  absl::Status status;
  ++range.host_writers;  // It stays absent while the lock is let go.
  for (int64_t done = 0; done < size_bytes;) {
    const int64_t index = (offset_bytes + done) / range.payload_bytes;
    const int64_t inside = (offset_bytes + done) % range.payload_bytes;
    const int64_t piece = std::min(size_bytes - done, range.payload_bytes - inside);
    const ChunkId chunk = range.chunk(index);
    mutex_.Unlock();
    // On-line moves wait for slots with the lock held, which the updater needs for a late gradient:
    // slots that only the caller lets go of must not be what they wait for.
    range.store->updates().AwaitLateGradients();
    absl::StatusOr<HostChunk> host = piece == range.payload_bytes
                                         ? range.store->AcquireToOverwrite(chunk)
                                         : range.store->AcquireUncommitted(chunk);
    status = host.status();
    // To memory that is not registered yet, CUDA may copy before it returns.
    if (status.ok()) {
      last = copies_.Copy(CopyStream::kEvict, host->data() + inside, from + done, piece, written,
                          range.store->timeline().CopyOf(chunk));
    }
    mutex_.Lock();
    if (!status.ok()) break;
    range.host_quiet.Join(last);
    stats_.evict_bytes += piece;
    range.store->counters().AddEvictBytes(piece);
    hosts.push_back(*std::move(host));
    done += piece;
  }
  --range.host_writers;
  NotifyChange();
  if (!status.ok()) {
    copies_.Wait(last);
    return status;
  }
  return PendingWrite(copies_, last, std::move(hosts));
}

absl::Status Residency::Write(RangeId id, int64_t offset_bytes, const void* source,
                              int64_t size_bytes) {
  GEMINI_ASSIGN_OR_RETURN(PendingWrite write, BeginWrite(id, offset_bytes, source, size_bytes));
  write.Wait();
  return absl::OkStatus();
}

absl::Status Residency::Flush(RangeId id) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  WaitWhileMoving(range);
  GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
  if (!range.dirty) return absl::OkStatus();
  {
    CopyBatch batch(copies_);
    GEMINI_RETURN_IF_ERROR(WriteBack(range, batch));
  }
  GEMINI_RETURN_IF_ERROR(copies_.status());
  range.dirty = false;
  Publish(range);
  return absl::OkStatus();
}

absl::Status Residency::Drop(RangeId id) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  while (range.presence == Presence::kLeaving || range.busy) WaitForChange();
  GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
  if (range.presence == Presence::kAbsent) return absl::OkStatus();
  if (range.presence == Presence::kIncoming) {
    range.discarded = true;  // Its fetch may wait for the very update that made it stale.
    return absl::OkStatus();
  }
  Leave(id.value());
  budget_.Release(DeviceBudget::Use::kChunks, BytesOf(range));
  return absl::OkStatus();
}

bool Residency::MakeRoom(int64_t size_bytes, absl::Status* why) {
  const auto fits = [&] { return size_bytes <= budget_.budget_bytes() - budget_.used_bytes(); };
  std::function<bool()> release;
  {
    MutexLock lock(mutex_);
    release = pending_release_;
  }
  while (!fits() && release && release()) {
  }
  MutexLock lock(mutex_);
  if (fits()) return true;
  OperatorPoint since = stalls_.Now();
  const auto count_stall = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ranges_.empty()) {
      stalls_.Add(ranges_.front().store->counters(), StallCause::kRoom, std::move(since));
    }
  };
  // The plan leaves this room, but what is due may not have left yet.
  while (!fits() && planned_ != nullptr && planned_->active() && planned_->IsEvicting()) {
    WaitForChange();
  }
  for (;;) {
    for (int64_t id = evictable_.oldest(); id != LruList::kNone && !fits();) {
      const int64_t next = evictable_.newer(id);
      absl::Status status;
      {
        CopyBatch batch(copies_);
        status = Evict(id, batch);
      }
      // One whose write-back finds no room in HOST stays; a clean one behind it may still go.
      if (status.ok()) {
        budget_.Release(DeviceBudget::Use::kChunks, BytesOf(ranges_[id]));
        if (planned_ != nullptr) planned_->Interrupt(Divergence::kNonModel);
      } else if (why != nullptr) {
        *why = status;
      }
      id = next;
    }
    if (fits() || moving_ == 0) {
      count_stall();
      return fits();
    }
    // What is on its way can leave once it is there.
    if (planned_ != nullptr) planned_->Interrupt(Divergence::kNonModel);
    NotifyChange();
    WaitForChange();
  }
}

void Residency::set_pending_release(std::function<bool()> release) {
  MutexLock lock(mutex_);
  pending_release_ = std::move(release);
}

SlotId Residency::DeviceSlot(RangeId range) const {
  MutexLock lock(mutex_);
  return ranges_[range.value()].slot;
}

void Residency::Enter(int64_t id, SlotId slot) {
  Range& range = ranges_[id];
  range.slot = slot;
  range.last_use = ++clock_;
  evictable_.Add(id);
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    range.store->residency_writer().EnterDevice(range.chunk(i), SlotId(slot.value() + i));
  }
}

void Residency::Leave(int64_t id) {
  Range& range = ranges_[id];
  FreeSlots(range);
  const bool had_bytes = std::exchange(range.presence, Presence::kAbsent) != Presence::kReserved;
  range.dirty = false;
  if (evictable_.contains(id)) evictable_.Remove(id);
  for (int64_t i = 0; had_bytes && i < range.num_bundles; ++i) {
    range.store->residency_writer().LeaveDevice(range.chunk(i));
  }
  NotifyChange();
}

void Residency::FreeSlots(Range& range) {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    vacated_[range.slot.value() + i].Join(range.quiet());
  }
  range.host_quiet.Join(range.settled);
  range.settled = range.used = {};
  range.is_online = false;
  slots_.Free(range.slot, range.num_bundles);
  range.slot = kNoSlot;
}

void Residency::Publish(const Range& range) {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    range.store->residency_writer().SetOnDevice(range.chunk(i), SlotId(range.slot.value() + i),
                                                range.pins, range.dirty);
  }
}

CopyEvent Residency::FetchableAfter(const Range& range, SlotId first, int64_t index) const {
  CopyEvent after = range.host_quiet;
  const auto [begin, last] = range.slots_of(index);
  for (int64_t i = begin; i <= last; ++i) {
    after.Join(vacated_[first.value() + i]);
  }
  return after;
}

int64_t Residency::num_slots() const {
  MutexLock lock(mutex_);
  return slots_.num_usable();
}

ResidencyStats Residency::stats() const {
  MutexLock lock(mutex_);
  ResidencyStats stats = stats_;
  stats.stall_ns = stalls_.total_ns();
  for (int cause = 0; cause < kNumStallCauses; ++cause) {
    stats.stall_by_cause_ns[cause] = stalls_.of(static_cast<StallCause>(cause));
  }
  return stats;
}

}  // namespace gemini::client
