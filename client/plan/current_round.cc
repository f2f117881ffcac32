// SPDX-License-Identifier: Apache-2.0
#include "client/plan/current_round.h"

#include "gemini/plan/trace_wire.h"

namespace gemini::client {

void CurrentRound::Open(PlannedPhase& phase, RoundKind kind) {
  times_.BeginRound();
  phase_ = &phase;
  kind_ = kind;
  is_following_ = false;
  left_for_.reset();
  ++number_;
  recorder_.Begin();
  times_.SetTrace(recorder_.trace(), /*average=*/0);
}

void CurrentRound::Follow() {
  is_following_ = true;
  times_.SetTrace(*phase_->trace, phase_->averaged_rounds + 1, phase_->is_foretold);
}

void CurrentRound::Withdraw() {
  lacks_beginning_ = lacks_beginning_ && is_empty();
  first_operator_ = next_operator();
  times_.DropRound();
  phase_ = nullptr;
  is_following_ = false;
}

void CurrentRound::DropIfTooLong() {
  if (!is_open() || is_following_ || recorder_.size_bytes() <= kMaxTraceBytes) [[likely]] {
    return;
  }
  Withdraw();
  lacks_beginning_ = true;
}

bool CurrentRound::Expects(absl::Span<const TensorUse> uses) const {
  const Trace& trace = *phase_->trace;
  if (position() >= trace.num_positions() || position() == leave_at_) return false;
  const absl::Span<const TensorUse> expected = trace.uses_of(position());
  if (expected.size() != uses.size()) return false;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].tensor != expected[i].tensor || uses[i].kind != expected[i].kind) return false;
  }
  return true;
}

bool CurrentRound::EndsWith(absl::Span<const int32_t> updated) const {
  const Trace& trace = *phase_->trace;
  return position() == trace.num_positions() && updated == absl::MakeConstSpan(trace.updated);
}

void CurrentRound::Leave(Divergence cause) {
  left_for_ = cause;
  is_following_ = false;
  recorder_.BeginWith(*phase_->trace, position());
  // The interval of the last operator has not ended: its peak is still the one that was foretold.
  if (phase_->is_foretold && position() > 0) {
    recorder_.trace().operators.back().non_model_peak_bytes = 0;
  }
  times_.SetTrace(recorder_.trace(), /*average=*/0);
}

void CurrentRound::AddOperator(absl::Span<const TensorUse> uses) {
  if (!is_following_) recorder_.AddOperator(uses);
  times_.AddOperator();
}

void CurrentRound::MarkWritten(int64_t op, absl::Span<const TensorUse> uses) {
  if (!is_open() || is_following_ || op < first_operator_) return;
  recorder_.MarkWritten(static_cast<int32_t>(op - first_operator_), uses);
}

void CurrentRound::AddGradientOut(int32_t tensor) {
  if (is_open() && !is_empty()) recorder_.AddGradientOut(position() - 1, tensor);
}

KeptForUpdate CurrentRound::Kept() const {
  // Only at the end are the plan's ranges what the update needs.
  if (!is_following_ || position() != phase_->trace->num_positions()) return {};
  return phase_->plan->kept;
}

absl::Status CurrentRound::Close(std::optional<absl::Span<const int32_t>> updated,
                                 const std::vector<TracedTensor>& tensors, int64_t epoch) {
  Trace& recorded = recorder_.trace();
  absl::StatusOr<bool> is_new = false;
  if (is_following_) {
    phase_->CountGoodRound(epoch, recorded.gradient_outs);
  } else if (kind_ != RoundKind::kUpdateAlone && (!updated || !updated->empty())) {
    recorded.phase = phase_->name;
    recorded.tensors = tensors;
    if (updated) recorded.updated.assign(updated->begin(), updated->end());
    is_new = phase_->Keep(recorded, left_for_);
  }
  const bool is_in_trace = is_following_ || (is_new.ok() && *is_new);
  lacks_beginning_ = false;
  first_operator_ = next_operator();
  times_.EndRound(is_in_trace ? &*phase_->trace : nullptr, phase_->averaged_rounds);
  phase_ = nullptr;
  is_following_ = false;
  return is_new.status();
}

}  // namespace gemini::client
