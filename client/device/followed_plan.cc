// SPDX-License-Identifier: Apache-2.0
#include "client/device/followed_plan.h"

#include <algorithm>
#include <utility>

namespace gemini::client {

void FollowedPlan::Begin(PlanContents contents, int64_t reached) {
  contents_ = std::move(contents);
  fetching_ = RangeId();
  for (Lane& lane : lanes_) lane.activity = Activity::kWorking;
  progress_.Begin(reached);
}

void FollowedPlan::SetActivity(size_t lane, Activity activity) {
  lanes_[lane].activity = activity;
  lanes_[lane].gate = PlanProgress::kNoGate;
  UpdateGate();
}

void FollowedPlan::WaitForGate(size_t lane, Activity activity, int64_t gate) {
  lanes_[lane].activity = activity;
  lanes_[lane].gate = gate;
  UpdateGate();
}

void FollowedPlan::WaitForTurn(size_t lane, int32_t range, PlanTurn turn) {
  lanes_[lane].activity = Activity::kTurn;
  lanes_[lane].turn_range = range;
  lanes_[lane].turn = turn;
}

void FollowedPlan::Place(RangeId range, SlotId slot) {
  lanes_[kIn].activity = Activity::kPlacing;
  fetching_ = range;
  fetch_slot_ = slot;
}

void FollowedPlan::OpenGates() {
  for (Lane& lane : lanes_) {
    if (lane.gate > progress_.reached()) continue;
    lane.gate = PlanProgress::kNoGate;  // So that the operators until it runs need not come here.
    lane.activity = Activity::kWorking;
  }
  UpdateGate();
}

void FollowedPlan::UpdateGate() {
  progress_.SetGate(std::ranges::min(lanes_, {}, &Lane::gate).gate);
}

bool FollowedPlan::IsTurn(int32_t range, PlanTurn turn) const {
  const PlanTurn& made = contents_.counts[range];
  return made.fetches >= turn.fetches && made.evictions >= turn.evictions;
}

bool FollowedPlan::IsIdle() const {
  return std::ranges::all_of(lanes_,
                             [](const Lane& lane) { return lane.activity == Activity::kIdle; });
}

bool FollowedPlan::Rests(size_t which) const {
  const Lane& lane = lanes_[which];
  switch (lane.activity) {
    case Activity::kIdle:
      return true;
    case Activity::kGate:
    case Activity::kBudget:
    case Activity::kPinned:
      return lane.gate > progress_.reached();
    case Activity::kTurn:
      return !IsTurn(lane.turn_range, lane.turn);
    case Activity::kWorking:
    case Activity::kPlacing:
      return false;
  }
  return false;
}

std::optional<Divergence> FollowedPlan::WhyNotComing(RangeId range, const RangeTable& table) const {
  // Somebody wants what the plan does not bring, or not now; or keeps what should leave.
  if (!IsIn(contents_.fetched, range)) return Divergence::kPinned;
  bool comes = !Rests(kIn);
  switch (lanes_[kIn].activity) {
    case Activity::kPlacing:  // Paused, it goes on; with its slots taken, when they are left.
      comes = !table.IsOccupied(fetching_, fetch_slot_) || !OutRests();
      break;
    case Activity::kTurn:
      comes |= !OutRests();
      break;
    default:
      break;
  }
  if (comes) return std::nullopt;
  return lanes_[kIn].activity == Activity::kBudget ? Divergence::kNonModel : Divergence::kPinned;
}

StallCause FollowedPlan::WaitingFor(const RangeTable& table) const {
  switch (lanes_[kIn].activity) {
    case Activity::kTurn:
    case Activity::kPlacing:
    case Activity::kBudget:
      return StallCause::kRoom;
    default:
      break;
  }
  if (fetching_ == RangeId()) return StallCause::kTransfer;
  const DeviceRange& range = table.at(fetching_);
  if (range.acquiring < 0) return StallCause::kTransfer;
  const ChunkId chunk = range.chunk(range.acquiring);
  if (!range.store->AwaitsCommit(chunk)) return StallCause::kNvme;
  return range.store->updates().AwaitsGradient(BundleOf(chunk)) ? StallCause::kTransfer
                                                                : StallCause::kUpdate;
}

}  // namespace gemini::client
