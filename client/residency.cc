// SPDX-License-Identifier: Apache-2.0
#include "client/residency.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/check.h"
#include "gemini/status_macros.h"

namespace gemini::client {

Residency::Residency(DeviceBudget& budget, CopyEngine& copies, std::byte* arena, int64_t num_slots,
                     int64_t chunk_bytes)
    : budget_(budget),
      copies_(copies),
      arena_(arena),
      chunk_bytes_(chunk_bytes),
      slots_(num_slots),
      vacated_(num_slots) {}

RangeId Residency::AddRange(ChunkStore& store, BundleId first, int64_t num_bundles,
                            ChunkKind kind) {
  GEMINI_CHECK(kind == ChunkKind::kParam || kind == ChunkKind::kGrad);
  GEMINI_CHECK(store.chunk_bytes() == chunk_bytes_ && num_bundles > 0 && first.value() >= 0 &&
               first.value() + num_bundles <= store.num_bundles());
  MutexLock lock(mutex_);
  const Range range = {.store = &store, .first = first, .num_bundles = num_bundles, .kind = kind};
  const auto known = range_of_chunk_.find({&store, ChunkAt(range, 0)});
  if (known != range_of_chunk_.end()) {
    const Range& same = ranges_[known->second];
    GEMINI_CHECK(same.first == first && same.num_bundles == num_bundles);
    return RangeId(known->second);
  }
  const int64_t id = static_cast<int64_t>(ranges_.size());
  for (int64_t i = 0; i < num_bundles; ++i) {
    GEMINI_CHECK(range_of_chunk_.emplace(std::pair(&store, ChunkAt(range, i)), id).second);
  }
  ranges_.push_back(range);
  evictable_.Grow();
  return RangeId(id);
}

absl::Status Residency::Pin(absl::Span<const RangeId> ranges, absl::Span<std::byte*> addresses) {
  GEMINI_CHECK(ranges.size() == addresses.size());
  MutexLock lock(mutex_);
  for (const RangeId id : ranges) {
    const Range& range = ranges_[id.value()];
    if (range.slot != kNoSlot && !range.settling) continue;
    GEMINI_RETURN_IF_ERROR(BringIn(ranges));
    break;
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range& range = ranges_[ranges[i].value()];
    if (range.pins++ == 0) {
      evictable_.Remove(ranges[i].value());
      pinned_bytes_ += BytesOf(range);
    }
    Publish(range);
    addresses[i] = AddressOf(range.slot);
  }
  stats_.pinned_peak_bytes = std::max(stats_.pinned_peak_bytes, pinned_bytes_);
  return absl::OkStatus();
}

void Residency::Unpin(RangeId id, bool dirty) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  GEMINI_CHECK(range.pins > 0);
  range.dirty |= dirty;
  if (--range.pins == 0) {
    range.last_use = ++clock_;
    evictable_.Add(id.value());
    pinned_bytes_ -= BytesOf(range);
  }
  Publish(range);
}

absl::Status Residency::BringIn(absl::Span<const RangeId> ids) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<int64_t> missing;
  for (const RangeId id : ids) {
    Range& range = ranges_[id.value()];
    if (range.settling) {
      copies_.Wait(range.settled);
      range.settling = false;
    }
    if (!range.wanted && range.slot == kNoSlot) missing.push_back(id.value());
    range.wanted = true;
  }
  std::optional<Plan> plan = MakePlan(missing, /*move_all=*/false);
  // Unpinned ranges may split the room into pieces that are too small, each itself wanted.
  if (!plan) plan = MakePlan(missing, /*move_all=*/true);
  absl::Status status = plan && ChargePlan(*plan) ? Execute(*plan) : NoRoom(ids);
  if (plan) {
    for (const int64_t victim : plan->victims) ranges_[victim].leaving = false;
  }
  const int64_t stall_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count();
  stats_.stall_ns += stall_ns;
  SpaceCounters& counters = ranges_[ids[0].value()].store->counters();
  counters.AddStallNs(stall_ns);
  counters.SetDeviceBytes(budget_.used_bytes(), budget_.non_model_bytes());
  for (const RangeId id : ids) ranges_[id.value()].wanted = false;
  return status;
}

std::optional<Residency::Plan> Residency::MakePlan(std::vector<int64_t> missing, bool move_all) {
  Plan plan;
  DeviceSlots trial = slots_;
  const auto vacate = [&](int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Range& range = ranges_[id];
    trial.Free(range.slot, range.num_bundles);
    plan.victims.push_back(id);
    plan.freed_bytes += BytesOf(range);
  };
  if (move_all) {
    for (int64_t id = evictable_.oldest(); id != LruList::kNone; id = evictable_.newer(id)) {
      vacate(id);
      if (ranges_[id].wanted) missing.push_back(id);
    }
  }
  std::stable_sort(missing.begin(), missing.end(),
                   [this](int64_t a, int64_t b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     return ranges_[a].num_bundles > ranges_[b].num_bundles;
                   });
  for (const int64_t id : missing) {
    const int64_t count = ranges_[id].num_bundles;
    std::optional<SlotId> slot = trial.FindFree(count);
    if (!slot) {
      slot = trial.FindOldest(
          count, [this](int64_t occupant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> int64_t {
            const Range& range = ranges_[occupant];
            return range.pins > 0 || range.wanted ? -1 : range.last_use;
          });
      if (!slot) return std::nullopt;
      for (int64_t i = slot->value(); i < slot->value() + count; ++i) {
        if (trial.occupant(SlotId(i)) != DeviceSlots::kNobody) vacate(trial.occupant(SlotId(i)));
      }
    }
    trial.Take(*slot, count, id);
    plan.placements.push_back({.range = id, .slot = *slot});
    plan.placed_bytes += BytesOf(ranges_[id]);
  }
  for (const int64_t victim : plan.victims) ranges_[victim].leaving = true;
  return plan;
}

bool Residency::ChargePlan(Plan& plan) {
  int64_t candidate = evictable_.oldest();
  for (;;) {
    const int64_t more_bytes = std::max<int64_t>(0, plan.placed_bytes - plan.freed_bytes);
    if (budget_.TryCharge(DeviceBudget::Use::kChunks, more_bytes)) return true;
    while (candidate != LruList::kNone &&
           (ranges_[candidate].wanted || ranges_[candidate].leaving)) {
      candidate = evictable_.newer(candidate);
    }
    if (candidate == LruList::kNone) return false;
    ranges_[candidate].leaving = true;
    plan.victims.push_back(candidate);
    plan.freed_bytes += BytesOf(ranges_[candidate]);
  }
}

// The charge of a victim's slots passes to those who come: giving it back first would let another
// thread's allocation take it in between.
absl::Status Residency::Execute(const Plan& plan) {
  int64_t charged_bytes = std::max<int64_t>(0, plan.placed_bytes - plan.freed_bytes);
  absl::Status status;
  {
    CopyBatch batch(copies_);
    for (const int64_t victim : plan.victims) {
      status = Evict(victim, batch);
      if (!status.ok()) break;
      charged_bytes += BytesOf(ranges_[victim]);
      // It will be fetched from where it is being written to.
      if (ranges_[victim].wanted) batch.Drain();
    }
    for (const Placement& placement : plan.placements) {
      const Range& range = ranges_[placement.range];
      for (int64_t i = 0; status.ok() && i < range.num_bundles; ++i) {
        const SlotId slot(placement.slot.value() + i);
        // Both are of the evict stream: the later one covers the other.
        const CopyEvent after = vacated_[slot.value()].sequence > range.host_written.sequence
                                    ? vacated_[slot.value()]
                                    : range.host_written;
        status = batch.Fetch(*range.store, ChunkAt(range, i), AddressOf(slot), after);
        if (!status.ok()) break;
        stats_.fetch_bytes += chunk_bytes_;
        range.store->counters().AddFetchBytes(chunk_bytes_);
      }
    }
  }  // Drained: what was copied is there.
  if (status.ok()) {
    for (const Placement& placement : plan.placements) {
      Range& range = ranges_[placement.range];
      slots_.Take(placement.slot, range.num_bundles, placement.range);
      range.slot = placement.slot;
      range.last_use = ++clock_;
      evictable_.Add(placement.range);
      for (int64_t i = 0; i < range.num_bundles; ++i) {
        range.store->residency_writer().EnterDevice(ChunkAt(range, i),
                                                    SlotId(placement.slot.value() + i));
      }
    }
    charged_bytes -= plan.placed_bytes;
  }
  budget_.Release(DeviceBudget::Use::kChunks, charged_bytes);
  return status;
}

absl::Status Residency::NoRoom(absl::Span<const RangeId> ids) const {
  int64_t needed_bytes = 0;
  std::vector<RangeId> unique(ids.begin(), ids.end());
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  for (const RangeId id : unique) {
    if (ranges_[id.value()].pins == 0) needed_bytes += BytesOf(ranges_[id.value()]);
  }
  const int64_t non_model_bytes = budget_.non_model_bytes();
  const int64_t total_bytes = needed_bytes + pinned_bytes_ + non_model_bytes;
  const int64_t budget_bytes = budget_.budget_bytes();
  return absl::ResourceExhaustedError(absl::StrCat(
      "an operator needs ", FormatByteSize(needed_bytes), " of chunks on DEVICE beside ",
      FormatByteSize(pinned_bytes_), " pinned and ", FormatByteSize(non_model_bytes),
      " of non-model data, ", FormatByteSize(total_bytes), " together; the budget is ",
      FormatByteSize(budget_bytes), " (", slots_.num_slots(), " slots of ",
      FormatByteSize(chunk_bytes_), "): ",
      total_bytes > budget_bytes
          ? absl::StrCat("raise --device-memory to at least ", FormatByteSize(total_bytes))
          : std::string("pinned chunks split the room; raise --device-memory")));
}

absl::Status Residency::Evict(int64_t id, CopyBatch& batch) {
  Range& range = ranges_[id];
  if (range.dirty) GEMINI_RETURN_IF_ERROR(WriteBack(range, batch));
  Leave(id);
  return absl::OkStatus();
}

absl::Status Residency::WriteBack(Range& range, CopyBatch& batch) {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    const SlotId slot(range.slot.value() + i);
    GEMINI_ASSIGN_OR_RETURN(vacated_[slot.value()],
                            batch.WriteBack(*range.store, ChunkAt(range, i), AddressOf(slot)));
    stats_.evict_bytes += chunk_bytes_;
    range.store->counters().AddEvictBytes(chunk_bytes_);
  }
  return absl::OkStatus();
}

void Residency::Leave(int64_t id) {
  Range& range = ranges_[id];
  slots_.Free(range.slot, range.num_bundles);
  range.slot = kNoSlot;
  range.dirty = false;
  range.settling = false;
  evictable_.Remove(id);
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    range.store->residency_writer().LeaveDevice(ChunkAt(range, i));
  }
}

void Residency::Publish(const Range& range) {
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    range.store->residency_writer().SetOnDevice(ChunkAt(range, i), SlotId(range.slot.value() + i),
                                                range.pins, range.dirty);
  }
}

absl::Status Residency::CheckUnpinned(const Range& range) const {
  if (range.pins == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("chunk ", ChunkAt(range, 0).value(), " of space ", range.store->name(),
                   " is pinned ", range.pins, " times: an operator is using it"));
}

absl::StatusOr<PendingWrite> Residency::BeginWrite(RangeId id, int64_t offset_bytes,
                                                   const void* source, int64_t size_bytes) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  if (offset_bytes < 0 || size_bytes < 0 || offset_bytes > BytesOf(range) - size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a write of ", size_bytes, " bytes at ",
                                                   offset_bytes, " into a range of ",
                                                   BytesOf(range)));
  }
  const std::byte* const from = static_cast<const std::byte*>(source);
  for (int64_t i = 0; i < range.num_bundles; ++i) {
    if (!range.store->IsCommitted(ChunkAt(range, i))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("chunk ", ChunkAt(range, i).value(), " is committed: pin it to write to it"));
  }
  std::vector<HostChunk> hosts;
  CopyEvent last;
  if (range.slot != kNoSlot) {
    last = copies_.Copy(CopyStream::kEvict, AddressOf(range.slot) + offset_bytes, from, size_bytes,
                        {});
    range.settling = true;
    range.settled = last;
    range.dirty = true;
    // Who comes into its slots next waits for the copy, however the range leaves them.
    for (int64_t i = 0; i < range.num_bundles; ++i) vacated_[range.slot.value() + i] = last;
    Publish(range);
    return PendingWrite(copies_, last, std::move(hosts));
  }
  for (int64_t done = 0; done < size_bytes;) {
    const int64_t index = (offset_bytes + done) / chunk_bytes_;
    const int64_t inside = (offset_bytes + done) % chunk_bytes_;
    const int64_t piece = std::min(size_bytes - done, chunk_bytes_ - inside);
    const ChunkId chunk = ChunkAt(range, index);
    absl::StatusOr<HostChunk> host = piece == chunk_bytes_ ? range.store->AcquireToOverwrite(chunk)
                                                           : range.store->AcquireUncommitted(chunk);
    if (!host.ok()) {
      copies_.Wait(last);
      return host.status();
    }
    last = copies_.Copy(CopyStream::kEvict, host->data() + inside, from + done, piece, {});
    range.host_written = last;
    hosts.push_back(*std::move(host));
    done += piece;
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
  GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
  if (!range.dirty) return absl::OkStatus();
  {
    CopyBatch batch(copies_);
    GEMINI_RETURN_IF_ERROR(WriteBack(range, batch));
  }
  range.dirty = false;
  Publish(range);
  return absl::OkStatus();
}

absl::Status Residency::Drop(RangeId id) {
  MutexLock lock(mutex_);
  Range& range = ranges_[id.value()];
  GEMINI_RETURN_IF_ERROR(CheckUnpinned(range));
  if (range.slot == kNoSlot) return absl::OkStatus();
  Leave(id.value());
  budget_.Release(DeviceBudget::Use::kChunks, BytesOf(range));
  return absl::OkStatus();
}

bool Residency::MakeRoom(int64_t size_bytes) {
  MutexLock lock(mutex_);
  const auto fits = [&] { return size_bytes <= budget_.budget_bytes() - budget_.used_bytes(); };
  for (int64_t id = evictable_.oldest(); id != LruList::kNone && !fits();) {
    const int64_t next = evictable_.newer(id);
    bool left;
    {
      CopyBatch batch(copies_);
      left = Evict(id, batch).ok();
    }
    // One whose write-back finds no room in HOST stays; a clean one behind it may still go.
    if (left) budget_.Release(DeviceBudget::Use::kChunks, BytesOf(ranges_[id]));
    id = next;
  }
  return fits();
}

ResidencyStats Residency::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace gemini::client
