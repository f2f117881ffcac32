// SPDX-License-Identifier: Apache-2.0
// The part of ChunkStore that concerns updates: who waits for a commit, what the updater takes,
// gradients that come late, and the versions that were made on DEVICE.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/host/chunk_store.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// The record of the version that comes after the one of `before`.
CommitRecord RecordOf(const StateFormat& format, const DeviceVersion& version,
                      CommitRecord before) {
  for (const ChunkKind kind : UpdatedKinds(format)) {
    before[static_cast<int>(kind)] =
        PackChunkSlot({.tier = Tier::kDevice, .slot = version.slots[kind]});
  }
  return before;
}

absl::Status CheckBelow(absl::string_view space, BundleId bundle, int64_t at, int64_t step) {
  if (at >= 0 && at < step) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("bundle ", bundle.value(), " of space ", space,
                                                    " is at step ", at,
                                                    ": it cannot be updated to step ", step));
}

bool IsLate(const PendingCommits& pending, ChunkId chunk) {
  return KindOf(chunk) == ChunkKind::kGrad && pending.awaits_gradient(BundleOf(chunk));
}

int64_t SlotsForUpdates(const StateFormat& format, bool any_late) {
  return UpdateSlots(format) + (any_late ? kLateGradientSlots : 0);
}

// Each bundle of an update comes once, and late ones are of those that are updated in HOST.
absl::Status CheckNames(absl::string_view space, int64_t num_bundles,
                        absl::Span<const BundleId> bundles,
                        absl::Span<const DeviceVersion> on_device,
                        absl::Span<const BundleId> late_gradients) {
  enum class Named : uint8_t { kNot, kOnce, kLate };
  std::vector<Named> named(num_bundles, Named::kNot);
  const auto name = [&](BundleId bundle, Named before, Named now, absl::string_view what) {
    if (bundle.value() < 0 || bundle.value() >= num_bundles) {
      return absl::InvalidArgumentError(absl::StrCat("space ", space, " has no chunk of bundle ",
                                                     bundle.value(), "; it has ", num_bundles));
    }
    if (std::exchange(named[bundle.value()], now) == before) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("an update names bundle ", bundle.value(), " of space ", space, what));
  };
  for (const BundleId bundle : bundles) {
    GEMINI_RETURN_IF_ERROR(name(bundle, Named::kNot, Named::kOnce, " twice"));
  }
  for (const BundleId bundle : late_gradients) {
    GEMINI_RETURN_IF_ERROR(name(bundle, Named::kOnce, Named::kLate,
                                " for a late gradient twice, or without updating it in HOST"));
  }
  for (const DeviceVersion& version : on_device) {
    GEMINI_RETURN_IF_ERROR(name(version.bundle, Named::kNot, Named::kOnce, " twice"));
  }
  return absl::OkStatus();
}

}  // namespace

bool ChunkStore::AwaitsCommitLocked(ChunkId chunk, Access access) const {
  if (access == Access::kUpdate || !pending_.awaits(BundleOf(chunk))) return false;
  // The commit waits for a late gradient, and not the other way round.
  if (access == Access::kWriteBack && IsLate(pending_, chunk)) return false;
  // The update reads the gradient too.
  return access != Access::kRead || KindOf(chunk) != ChunkKind::kGrad;
}

int64_t ChunkStore::MostSlotsOfOthers(bool any_late) const {
  return free_host_.num_slots() - SlotsForUpdates(format(), any_late);
}

bool ChunkStore::MayHoldMore() const {
  if (pending_.count() == 0 || !update_failure_.ok()) return true;
  // A bundle may be committed without its gradient while that is written back.
  const bool any_late = pending_.late_count() > 0 || in_late_slot_ != ChunkId();
  return slots_of_others_ < MostSlotsOfOthers(any_late);
}

// Each spare is a copy beyond those that HOST and NVME have slots for: too many, and the updater's
// new chunks could not push others to NVME.
bool ChunkStore::MayTakeSpare() const {
  if (pending_.count() == 0 || !update_failure_.ok()) return true;
  const int64_t spares = std::ranges::count_if(host_slots_, [](const HostSlot& slot) {
    return slot.owner == ChunkId() && slot.holds > slot.update_holds;
  });
  return MayHoldMore() && spares < kSlotsBesideUpdate;
}

absl::Status ChunkStore::AwaitAccess(ChunkId chunk, Access access) {
  for (;;) {
    if (chunks_[chunk.value()].busy) {
      mutex_.WaitFor(idle_);
    } else if (AwaitsCommitLocked(chunk, access)) {
      if (!update_failure_.ok()) return update_failure_;
      pending_.Hurry(BundleOf(chunk));
      moves_.readable.notify_all();
      mutex_.WaitFor(idle_);
    } else if (access == Access::kWriteBack && IsLate(pending_, chunk) &&
               in_late_slot_ == ChunkId()) {
      return absl::OkStatus();
    } else if (access != Access::kUpdate && !MayHoldMore()) {
      mutex_.WaitFor(idle_);
    } else {
      return absl::OkStatus();
    }
  }
}

absl::Status ChunkStore::CheckIntent(const Intent& intent, absl::Span<const BundleId> bundles,
                                     bool late) const {
  if (pending_.count() > 0) {
    if (!update_failure_.ok()) return update_failure_;
    return absl::FailedPreconditionError(
        absl::StrCat("step ", intent.step, " of space ", name_, " cannot begin: ", pending_.count(),
                     " bundles still await their commit at step ", intent_step_));
  }
  if (static_cast<int64_t>(intent.tensors.size()) != intents_.num_tensors()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an intent of ", intent.tensors.size(), " tensors for space ", name_,
                     ", which was opened for ", intents_.num_tensors()));
  }
  if (intent.step <= 0 || intent.step >= int64_t{1} << kCommitStepBits) {
    return absl::InvalidArgumentError(absl::StrCat("an intent for step ", intent.step));
  }
  for (const BundleId bundle : bundles) {
    GEMINI_RETURN_IF_ERROR(CheckBelow(name_, bundle, commits_.step(bundle), intent.step));
    const ChunkId grad = ChunkOf(bundle, ChunkKind::kGrad);
    const SlotId slot = chunks_[grad.value()].host;
    if (grad == in_late_slot_ || (slot != kNoSlot && host_slots_[slot.value()].holds >
                                                         host_slots_[slot.value()].update_holds)) {
      return absl::FailedPreconditionError(absl::StrCat("the gradient of bundle ", bundle.value(),
                                                        " of space ", name_,
                                                        " is held: it may not be complete"));
    }
  }
  if (!bundles.empty() && slots_of_others_ > MostSlotsOfOthers(late)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "an update needs ", SlotsForUpdates(format(), late), " HOST slots of space ", name_, "; ",
        slots_of_others_, " of its ", free_host_.num_slots(), " are held: raise --host-memory"));
  }
  return absl::OkStatus();
}

absl::Status ChunkStore::CheckOnDevice(const DeviceVersion& version, int64_t step) const {
  GEMINI_RETURN_IF_ERROR(CheckBelow(name_, version.bundle, commits_.step(version.bundle), step));
  for (const ChunkKind kind : UpdatedKinds(format())) {
    const SlotId slot = version.slots[kind];
    const StoredChunk& chunk = chunks_[ChunkOf(version.bundle, kind).value()];
    const auto refusal = [&](absl::string_view why) {
      return absl::StrCat("the ", ChunkKindName(kind), " of bundle ", version.bundle.value(),
                          " of space ", name_, " ", why);
    };
    if (slot.value() < 0 || slot.value() >= memory_.shape().device_slots) {
      return absl::InvalidArgumentError(refusal(absl::StrCat(
          "cannot be in DEVICE slot ", slot.value(), " of ", memory_.shape().device_slots)));
    }
    // The version before would be nowhere.
    if (chunk.device != kNoSlot) {
      return absl::FailedPreconditionError(refusal("was not written back since its last update"));
    }
    if (chunk.host != kNoSlot && host_slots_[chunk.host.value()].holds > 0) {
      return absl::FailedPreconditionError(refusal("is held in HOST and cannot be given up"));
    }
  }
  return absl::OkStatus();
}

// `record` is prepared. The word names it before the copies of the version before may go.
void ChunkStore::CommitOnDevice(const DeviceVersion& version, int64_t step, int64_t record) {
  commits_.CommitPrepared(version.bundle, step, record,
                          RecordOf(format(), version, commits_.record(version.bundle)));
  for (const ChunkKind kind : UpdatedKinds(format())) {
    const ChunkId id = ChunkOf(version.bundle, kind);
    DropHostCopy(id);
    DropNvmeCopy(id);
    chunks_[id.value()].device = version.slots[kind];
    chunks_[id.value()].committed = true;
    residency_.SetBelow(id, std::nullopt);
  }
}

absl::Status ChunkStore::BeginUpdate(const Intent& intent, absl::Span<const BundleId> bundles,
                                     absl::Span<const DeviceVersion> on_device,
                                     absl::Span<const BundleId> late_gradients) {
  GEMINI_RETURN_IF_ERROR(CheckNames(name_, num_bundles(), bundles, on_device, late_gradients));
  MutexLock lock(mutex_);
  // Waiting for one lets go of the lock, and another may become busy meanwhile.
  const auto is_unsettled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const DeviceVersion& version : on_device) {
      for (const ChunkKind kind : UpdatedKinds(format())) {
        const ChunkId id = ChunkOf(version.bundle, kind);
        if (chunks_[id.value()].busy || IsFetchedFrom(id)) return true;
      }
    }
    for (const BundleId bundle : bundles) {
      if (IsFetchedFrom(ChunkOf(bundle, ChunkKind::kGrad))) return true;
    }
    return !bundles.empty() && ending_holds_ > 0 &&
           slots_of_others_ > MostSlotsOfOthers(!late_gradients.empty());
  };
  while (is_unsettled()) mutex_.WaitFor(idle_);
  GEMINI_RETURN_IF_ERROR(CheckIntent(intent, bundles, !late_gradients.empty()));
  for (const DeviceVersion& version : on_device) {
    GEMINI_RETURN_IF_ERROR(CheckOnDevice(version, intent.step));
  }
  // Nothing can fail from here on.
  Intent recorded = intent;
  recorded.on_device.clear();
  for (const DeviceVersion& version : on_device) {
    const CommitRecord record = RecordOf(format(), version, commits_.record(version.bundle));
    recorded.on_device.push_back({version.bundle, commits_.Prepare(record)});
  }
  intents_.Record(recorded);
  intent_step_ = intent.step;
  for (size_t i = 0; i < on_device.size(); ++i) {
    CommitOnDevice(on_device[i], intent.step, recorded.on_device[i].record);
  }
  pending_.Expect(bundles, late_gradients);
  moves_.Restart();
  counters_.SetUpdatePending(pending_.count());
  return absl::OkStatus();
}

std::optional<BundleId> ChunkStore::TakeUpdate() {
  MutexLock lock(mutex_);
  if (!update_failure_.ok()) return std::nullopt;
  moves_.readable.notify_all();
  return pending_.Take();
}

bool ChunkStore::AwaitsGradient(BundleId bundle) const {
  MutexLock lock(mutex_);
  return pending_.awaits_gradient(bundle);
}

void ChunkStore::GradientArrived(BundleId bundle) {
  MutexLock lock(mutex_);
  pending_.GradientArrived(bundle);
  idle_.notify_all();  // After the last, others may hold one slot more.
}

void ChunkStore::AwaitLateGradients() {
  MutexLock lock(mutex_);
  while (pending_.late_count() > 0 && update_failure_.ok()) mutex_.WaitFor(idle_);
}

void ChunkStore::FailUpdates(absl::Status error) {
  MutexLock lock(mutex_);
  if (update_failure_.ok()) update_failure_ = std::move(error);
  idle_.notify_all();
}

void ChunkStore::RetryUpdates() {
  MutexLock lock(mutex_);
  update_failure_ = absl::OkStatus();
  pending_.ReturnAll();
  moves_.Restart();
}

absl::Status ChunkStore::AwaitCommits() {
  MutexLock lock(mutex_);
  while (pending_.count() > 0 && update_failure_.ok()) mutex_.WaitFor(idle_);
  return pending_.count() > 0 ? update_failure_ : absl::OkStatus();
}

absl::Status ChunkStore::AwaitCommit(BundleId bundle) {
  MutexLock lock(mutex_);
  while (pending_.awaits(bundle)) {
    if (!update_failure_.ok()) return update_failure_;
    pending_.Hurry(bundle);
    moves_.readable.notify_all();
    mutex_.WaitFor(idle_);
  }
  return absl::OkStatus();
}

bool ChunkStore::AwaitsCommit(ChunkId chunk) const {
  MutexLock lock(mutex_);
  return AwaitsCommitLocked(chunk, Access::kRead);
}

std::optional<int64_t> ChunkStore::PeekGradient(BundleId bundle,
                                                absl::FunctionRef<void(const std::byte*)> look) {
  const ChunkId id = ChunkOf(bundle, ChunkKind::kGrad);
  MutexLock lock(mutex_);
  while (chunks_[id.value()].busy) mutex_.WaitFor(idle_);
  StoredChunk& chunk = chunks_[id.value()];
  if (chunk.host == kNoSlot || host_slots_[chunk.host.value()].holds > 0) return std::nullopt;
  spillable_.Remove(chunk.host);
  CountHold(chunk.host, Access::kUpdate);
  chunk.busy = true;
  const SlotId slot = chunk.host;
  const int64_t writes = chunk.writes.all;
  mutex_.Unlock();
  look(memory_.slot_address(slot));
  mutex_.Lock();
  chunk.busy = false;
  DropHold(slot, /*for_update=*/true);
  idle_.notify_all();
  return writes;
}

ChunkWrites ChunkStore::WriteCounts(ChunkId chunk) const {
  MutexLock lock(mutex_);
  return chunks_[chunk.value()].writes;
}

}  // namespace gemini::client
