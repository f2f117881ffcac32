// SPDX-License-Identifier: Apache-2.0
// Keeps how far a plan is followed, and what it is doing on DEVICE. Its lanes, the threads that
// move ranges for it (client/plan/plan_lane.h), write that here, and threads that wait for a range
// read it. So plans call the tier, and the tier calls no plan.
// Thread: PlanProgress: any, without a lock. FollowedPlan: none of its own; DeviceTier locks.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "client/device/range_table.h"
#include "gemini/ids.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

// Progress is how far the operators are since the start of time, as Gate::value counts
// (gemini/plan/gate.h): an operator has begun and all before it have ended, or it has ended. A gate
// is the progress that a lane waits for.
class PlanProgress {
 public:
  static constexpr int64_t kNoGate = std::numeric_limits<int64_t>::max();

  // Returns whether the plan still moves ranges. Moves that it had begun before it ended are still
  // completed.
  bool active() const { return active_.load(std::memory_order_acquire); }
  // Returns why the last plan ended; kOperator while one is active.
  Divergence cause() const { return cause_.load(std::memory_order_acquire); }
  int64_t reached() const { return reached_.load(std::memory_order_seq_cst); }
  // Reports progress; less than before changes nothing. Returns whether a lane waits for it.
  bool Reach(int64_t progress) {
    int64_t before = reached_.load(std::memory_order_relaxed);
    while (before < progress && !reached_.compare_exchange_weak(before, progress)) {
    }
    return progress >= gate_.load(std::memory_order_seq_cst);
  }

  // The rest is called with the tier's lock held.
  void Begin(int64_t reached) {
    reached_.store(reached, std::memory_order_seq_cst);
    cause_.store(Divergence::kOperator, std::memory_order_release);
    active_.store(true, std::memory_order_release);
  }
  void End(Divergence cause) {
    cause_.store(cause, std::memory_order_release);
    active_.store(false, std::memory_order_release);
  }
  // Sets the smallest gate that a lane waits for.
  void SetGate(int64_t gate) { gate_.store(gate, std::memory_order_seq_cst); }

 private:
  std::atomic<bool> active_{false};
  std::atomic<Divergence> cause_{Divergence::kOperator};
  std::atomic<int64_t> reached_{0};
  std::atomic<int64_t> gate_{kNoGate};
};

// Several lanes work through a plan's lists. A turn keeps the moves of one range in order when one
// of the lanes is late: how many fetches and evictions of the range are made before a move.
struct PlanTurn {
  int64_t fetches = 0;
  int64_t evictions = 0;
};

// What threads that wait for a plan's moves need to know of the plan.
struct PlanContents {
  std::vector<bool> fetched;     // By RangeId: the plan fetches it, or room for it.
  std::vector<bool> kept;        // By RangeId: it keeps the gradient until the update begins.
  std::vector<PlanTurn> counts;  // By range of the plan: its moves that are made already.
};

class FollowedPlan {
 public:
  // The lanes: kIn fetches, kBack makes the evictions that are BehindWriteBacks, kOut the others.
  static constexpr size_t kIn = 0, kOut = 1, kBack = 2, kNumLanes = 3;
  enum class Activity : uint8_t {
    kIdle,     // It has no plan, or nothing more to do in it.
    kWorking,  // It runs, until its next wait.
    kGate,     // It waits for the operators.
    kTurn,     // It waits for another lane's move of the same range.
    kPlacing,  // It waits for the slots of its fetch.
    kBudget,   // It waits for the operators, because the budget is used up.
    kPinned,   // It waits for the operators, because a range that should leave is pinned.
  };

  // `progress` outlives this.
  explicit FollowedPlan(PlanProgress& progress) : progress_(progress) {}
  FollowedPlan(const FollowedPlan&) = delete;

  // Begins a plan; all lanes are kWorking.
  void Begin(PlanContents contents, int64_t reached);
  // Between Pause and Resume no fetch may begin.
  void set_paused(bool paused) { paused_ = paused; }
  bool paused() const { return paused_; }

  // Say what a lane does: SetActivity for an activity without a gate or a turn, the other two for
  // one with it.
  void SetActivity(size_t lane, Activity activity);
  void WaitForGate(size_t lane, Activity activity, int64_t gate);
  void WaitForTurn(size_t lane, int32_t range, PlanTurn turn);
  // Says that the lane kIn is kPlacing, and for which fetch.
  void Place(RangeId range, SlotId slot);
  // Makes the lanes whose gate is reached kWorking.
  void OpenGates();

  // IsTurn returns whether it is the turn of a move of that range of the plan. counts is for
  // counting a move that was made.
  bool IsTurn(int32_t range, PlanTurn turn) const;
  PlanTurn& counts(int32_t range) { return contents_.counts[range]; }

  bool IsIdle() const;  // All lanes are.
  // Return whether the lanes that evict, or all lanes, will do nothing before the operators
  // advance.
  bool OutRests() const { return Rests(kOut) && Rests(kBack); }
  bool AllRest() const { return Rests(kIn) && OutRests(); }
  // Returns why the range, or room for it, will not arrive while a thread waits for it, or no value
  // if it will.
  std::optional<Divergence> WhyNotComing(RangeId range, const RangeTable& table) const;
  // Returns whether the plan keeps the gradient range on DEVICE until the update begins.
  bool KeepsGradient(RangeId range) const { return IsIn(contents_.kept, range); }
  // Returns the cause for which a thread that waits for a fetch stalls now.
  StallCause WaitingFor(const RangeTable& table) const;

 private:
  struct Lane {
    Activity activity = Activity::kIdle;
    int64_t gate = PlanProgress::kNoGate;
    int32_t turn_range = 0;  // In kTurn.
    PlanTurn turn;
  };

  static bool IsIn(const std::vector<bool>& set, RangeId range) {
    const auto index = static_cast<size_t>(range.value());
    return index < set.size() && set[index];
  }
  // Returns whether a lane will do nothing before the operators, or another lane, advance.
  bool Rests(size_t lane) const;
  void UpdateGate();

  PlanProgress& progress_;
  PlanContents contents_;
  std::array<Lane, kNumLanes> lanes_;
  bool paused_ = false;
  RangeId fetching_;  // The last range that kIn placed, and its slot.
  SlotId fetch_slot_;
};

}  // namespace gemini::client
