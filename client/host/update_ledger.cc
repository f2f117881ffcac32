// SPDX-License-Identifier: Apache-2.0
#include "client/host/update_ledger.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/plan/spare_slots.h"

namespace gemini::client {

UpdateLedger::UpdateLedger(std::atomic<uint64_t>* word, IntentShm* intents, const SpaceShape& shape)
    : format_(shape.format),
      host_slots_(shape.host_slots),
      intents_(word, intents, shape.num_tensors, shape.num_bundles),
      pending_(shape.num_bundles) {}

absl::Status UpdateLedger::CheckIntent(absl::string_view space, const Intent& intent) const {
  if (pending_.count() > 0) {
    if (!failure_.ok()) return failure_;
    return absl::FailedPreconditionError(
        absl::StrCat("step ", intent.step, " of space ", space, " cannot begin: ", pending_.count(),
                     " bundles still await their commit at step ", step_));
  }
  if (static_cast<int64_t>(intent.tensors.size()) != intents_.num_tensors()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an intent of ", intent.tensors.size(), " tensors for space ", space,
                     ", which was opened for ", intents_.num_tensors()));
  }
  if (intent.step <= 0 || intent.step >= int64_t{1} << kCommitStepBits) {
    return absl::InvalidArgumentError(absl::StrCat("an intent for step ", intent.step));
  }
  return absl::OkStatus();
}

void UpdateLedger::Begin(const Intent& intent, absl::Span<const BundleId> bundles,
                         absl::Span<const BundleId> late_gradients) {
  intents_.Record(intent);
  step_ = intent.step;
  pending_.Expect(bundles, late_gradients);
  read_failed_ = write_failed_ = false;
}

bool UpdateLedger::Committed(BundleId bundle, int64_t step) {
  if (!pending_.awaits(bundle) || step < step_) return false;
  pending_.Done(bundle);
  return true;
}

std::optional<BundleId> UpdateLedger::Take() {
  return failure_.ok() ? pending_.Take() : std::nullopt;
}

void UpdateLedger::Fail(absl::Status error) {
  if (failure_.ok()) failure_ = std::move(error);
}

void UpdateLedger::Retry() {
  failure_ = absl::OkStatus();
  pending_.ReturnAll();
  read_failed_ = write_failed_ = false;
}

bool UpdateLedger::Delays(ChunkId chunk, ChunkAccess access) const {
  if (access == ChunkAccess::kUpdate || !pending_.awaits(BundleOf(chunk))) return false;
  // The commit waits for a late gradient, and not the other way round.
  if (IsLate(chunk, access)) return false;
  // The update reads the gradient too.
  return access != ChunkAccess::kRead || KindOf(chunk) != ChunkKind::kGrad;
}

bool UpdateLedger::IsLate(ChunkId chunk, ChunkAccess access) const {
  return access == ChunkAccess::kWriteBack && KindOf(chunk) == ChunkKind::kGrad &&
         pending_.awaits_gradient(BundleOf(chunk));
}

bool UpdateLedger::MayHoldMore(int64_t of_others) const {
  if (!IsUnderWay()) return true;
  // A bundle may be committed without its gradient while that is written back.
  const bool any_late = pending_.late_count() > 0 || in_late_slot_ != ChunkId();
  return of_others < SlotsForOthers(any_late);
}

int64_t UpdateLedger::SlotsForUpdate(bool any_late) const {
  return UpdateSlots(format_) + (any_late ? kLateGradientSlots : 0);
}

int64_t UpdateLedger::SlotsForOthers(bool any_late) const {
  return host_slots_ - SlotsForUpdate(any_late);
}

bool UpdateLedger::LeaveLateSlot(ChunkId owner) {
  if (owner == ChunkId() || owner != in_late_slot_) return false;
  in_late_slot_ = ChunkId();
  return true;
}

}  // namespace gemini::client
