// SPDX-License-Identifier: Apache-2.0
// The part of ChunkStore that concerns updates: who waits for a commit, and what the updater takes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/chunk_store.h"
#include "client/spare_slots.h"
#include "gemini/status_macros.h"

namespace gemini::client {

bool ChunkStore::AwaitsCommitLocked(ChunkId chunk, Access access) const {
  if (access == Access::kUpdate || !pending_.awaits(BundleOf(chunk))) return false;
  // The update reads the gradient too.
  return access == Access::kWrite || KindOf(chunk) != ChunkKind::kGrad;
}

bool ChunkStore::MayHoldMore() const {
  return pending_.count() == 0 || !update_failure_.ok() ||
         slots_of_others_ < free_host_.num_slots() - kUpdateSlots;
}

// Each spare is a copy beyond those that HOST and NVME have slots for: too many, and the updater's new
// chunks could not push others to NVME.
bool ChunkStore::MayTakeSpare() const {
  if (pending_.count() == 0 || !update_failure_.ok()) return true;
  const int64_t spares = std::ranges::count_if(host_slots_, [](const HostSlot& slot) {
    return slot.owner == ChunkId() && slot.holds > slot.update_holds;
  });
  return MayHoldMore() && spares < kSpareSlots - kUpdateSlots;
}

absl::Status ChunkStore::AwaitAccess(ChunkId chunk, Access access) {
  for (;;) {
    if (chunks_[chunk.value()].busy) {
      mutex_.WaitFor(idle_);
    } else if (AwaitsCommitLocked(chunk, access)) {
      if (!update_failure_.ok()) return update_failure_;
      pending_.Hurry(BundleOf(chunk));
      mutex_.WaitFor(idle_);
    } else if (access != Access::kUpdate && !MayHoldMore()) {
      mutex_.WaitFor(idle_);
    } else {
      return absl::OkStatus();
    }
  }
}

absl::Status ChunkStore::BeginUpdate(const Intent& intent, absl::Span<const BundleId> bundles) {
  MutexLock lock(mutex_);
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
    GEMINI_RETURN_IF_ERROR(CheckId(ChunkOf(bundle, ChunkKind::kParam)));
    if (commits_.step(bundle) < 0 || commits_.step(bundle) >= intent.step) {
      return absl::FailedPreconditionError(
          absl::StrCat("bundle ", bundle.value(), " of space ", name_, " is at step ",
                       commits_.step(bundle), ": it cannot be updated to step ", intent.step));
    }
    const SlotId grad = chunks_[ChunkOf(bundle, ChunkKind::kGrad).value()].host;
    if (grad != kNoSlot &&
        host_slots_[grad.value()].holds > host_slots_[grad.value()].update_holds) {
      return absl::FailedPreconditionError(absl::StrCat("the gradient of bundle ", bundle.value(),
                                                        " of space ", name_,
                                                        " is held: it may not be complete"));
    }
  }
  if (slots_of_others_ > free_host_.num_slots() - kUpdateSlots) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "an update needs ", kUpdateSlots, " HOST slots of space ", name_, "; ", slots_of_others_,
        " of its ", free_host_.num_slots(), " are held: raise --host-memory"));
  }
  intents_.Record(intent);
  intent_step_ = intent.step;
  pending_.Expect(bundles);
  counters_.SetUpdatePending(pending_.count());
  return absl::OkStatus();
}

std::optional<BundleId> ChunkStore::TakeUpdate() {
  MutexLock lock(mutex_);
  if (!update_failure_.ok()) return std::nullopt;
  return pending_.Take();
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
  WaitUntilIdle(id);
  Chunk& chunk = chunks_[id.value()];
  if (chunk.host == kNoSlot || host_slots_[chunk.host.value()].holds > 0) return std::nullopt;
  spillable_.Remove(chunk.host.value());
  CountHold(chunk.host, Access::kUpdate);
  chunk.busy = true;
  const SlotId slot = chunk.host;
  const int64_t writes = chunk.writes;
  mutex_.Unlock();
  look(memory_.slot_address(slot));
  mutex_.Lock();
  chunk.busy = false;
  DropHold(slot, /*for_update=*/true);
  idle_.notify_all();
  return writes;
}

int64_t ChunkStore::WriteCount(ChunkId chunk) const {
  MutexLock lock(mutex_);
  return chunks_[chunk.value()].writes;
}

}  // namespace gemini::client
