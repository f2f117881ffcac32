// SPDX-License-Identifier: Apache-2.0
#include "client/plan/planned_phase.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// The times of a recorded round are those of on-line placement and of cold memory: after so many
// rounds that followed their plan, it is made once more with theirs.
constexpr int64_t kSettledRounds = 3;
// So many rounds of a phase in a row that left their plan are bad luck; then it is planned more
// seldom.
constexpr int kMaxBadRounds = 3;
constexpr int kMaxSkippedRoundsShift = 5;
// Two rounds whose peaks differ by less than a fourth are alike.
constexpr int64_t kLikePeaksPart = 4;

absl::Status NothingOf(absl::string_view what, absl::string_view phase) {
  return absl::NotFoundError(absl::StrCat("phase ", phase, " has no ", what, " yet"));
}

int64_t PeakOf(const Trace& trace) {
  int64_t peak = 0;
  for (const TracedOperator& at : trace.operators) peak = std::max(peak, at.non_model_peak_bytes);
  return peak;
}

}  // namespace

void PlannedPhase::FitTo(int64_t device_bytes) {
  if (plan != nullptr && plan->plan.device_bytes != device_bytes) plan = nullptr;
}

void PlannedPhase::CountBadRound() {
  if (++bad_rounds < kMaxBadRounds) return;
  rounds_to_skip = 1 << std::min(bad_rounds - kMaxBadRounds, kMaxSkippedRoundsShift);
}

void PlannedPhase::CountRefusal() {
  // The same trace is refused again, most likely, and handing it over takes its time.
  rounds_to_skip = 1 << std::min(refusals++, kMaxSkippedRoundsShift);
}

void PlannedPhase::CountGoodRound(int64_t source_epoch,
                                  const std::vector<GradientOut>& gradient_outs) {
  bad_rounds = 0;
  is_foretold = false;
  // What is averaged by now is of before: the next round's times replace it.
  const bool is_new_epoch = std::exchange(epoch, source_epoch) != source_epoch;
  averaged_rounds = is_new_epoch ? 0 : averaged_rounds + 1;
  if (averaged_rounds == kSettledRounds) plan = nullptr;
  if (gradient_outs != trace->gradient_outs) {
    trace->gradient_outs = gradient_outs;
    plan = nullptr;
  }
}

void PlannedPhase::AddRoom() {
  if (room_bytes.size() == trace->operators.size()) {
    trace->room_bytes = room_bytes;
  } else {
    trace->room_bytes.clear();
  }
}

void PlannedPhase::Foretell(Trace& foretold) {
  room_bytes = foretold.room_bytes;
  // Batches of other sizes have the same operators.
  if (trace && Fingerprint(*trace) == Fingerprint(foretold) &&
      std::abs(PeakOf(*trace) - PeakOf(foretold)) <= PeakOf(foretold) / kLikePeaksPart) {
    // A short job leaves what was foretold to it.
    is_foretold = std::ranges::equal(trace->operators, foretold.operators, {},
                                     &TracedOperator::non_model_peak_bytes,
                                     &TracedOperator::non_model_peak_bytes);
    AddRoom();
    return;
  }
  if (!trace) trace.emplace();
  std::swap(*trace, foretold);
  is_foretold = true;
}

absl::StatusOr<bool> PlannedPhase::Keep(Trace& recorded, std::optional<Divergence> left_for) {
  // A round that another phase interrupted has no update, and none like it comes again.
  if (trace && trace->ends_with_update() && !recorded.ends_with_update()) return false;
  GEMINI_RETURN_IF_ERROR(CheckTrace(recorded));
  if (!trace || is_foretold || Fingerprint(recorded) != Fingerprint(*trace)) {
    if (!trace) trace.emplace();
    is_foretold = false;
    std::swap(*trace, recorded);
    AddRoom();
    recorded.room_bytes.clear();
    plan = nullptr;
    averaged_rounds = 0;
    return true;
  }
  for (size_t i = 0; i < recorded.operators.size(); ++i) {
    int64_t& kept_bytes = trace->operators[i].non_model_peak_bytes;
    kept_bytes = std::max(kept_bytes, recorded.operators[i].non_model_peak_bytes);
  }
  if (left_for == Divergence::kNonModel || left_for == Divergence::kBudget) plan = nullptr;
  return false;
}

PlannedPhase& PhaseTable::Get(std::string name) {
  PlannedPhase& phase = phases_[name];
  if (phase.name.empty()) phase.name = std::move(name);
  return phase;
}

void PhaseTable::NoteOrder(PlannedPhase& phase) {
  if (trained_ != nullptr) trained_->next = &phase;
  trained_ = &phase;
}

int32_t PhaseTable::AddTensors(absl::Span<const TracedTensor> tensors, int32_t space) {
  phases_.clear();
  trained_ = nullptr;
  const auto first = static_cast<int32_t>(tensors_.size());
  for (const TracedTensor& tensor : tensors) {
    tensors_.push_back(tensor);
    tensors_.back().space = space;
  }
  return first;
}

void PhaseTable::UseForetold(PlannedPhase& phase) {
  const auto is_of_this = [&](const Trace& trace) {
    return trace.phase == phase.name && trace.tensors == tensors_;
  };
  const auto found = std::ranges::find_if(foretold_, is_of_this);
  if (found == foretold_.end()) return;
  phase.Foretell(*found);
  foretold_.erase(found);
}

const PlannedPhase* PhaseTable::Find(absl::string_view name) const {
  const auto found = phases_.find(std::string(name));
  return found == phases_.end() ? nullptr : &found->second;
}

absl::StatusOr<Trace> PhaseTable::TraceOf(absl::string_view name) const {
  const PlannedPhase* const phase = Find(name);
  if (phase == nullptr || !phase->trace) return NothingOf("trace", name);
  return *phase->trace;
}

absl::StatusOr<Plan> PhaseTable::PlanOf(absl::string_view name) const {
  const PlannedPhase* const phase = Find(name);
  if (phase == nullptr || phase->plan == nullptr) return NothingOf("plan", name);
  return phase->plan->plan;
}

}  // namespace gemini::client
