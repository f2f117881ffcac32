// SPDX-License-Identifier: Apache-2.0
// Follows a plan round after round: it moves ranges ahead of the operators, in both directions at
// once.
// Threads: gemini-plan-in begins the fetches in the plan's order. gemini-plan-out makes the
// evictions that write nothing back, and gemini-plan-bck the others, each in their order.
// gemini-plan-end sees copies to DEVICE end and releases their HOST slots. A fetch begins when its
// `after` has passed and its slots are free; up to kMaxCopies are in flight.
// Thread: Start, Stop and the destructor: one at a time. The rest: any.
// End: a surprise ends the plan with its cause: a slot that nothing will vacate, a pinned chunk, a
// charge or a copy that fails, or a call of the tracker. Nothing new begins, what is in flight
// lands, and waiting operators continue on-line. An operator never waits for an executor that waits
// for that operator, because a waiter checks again whenever one of the threads begins to wait.
// Locks: its own comes after Residency's.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/copy/copy_engine.h"
#include "client/device/planned_moves.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/plan/plan_binding.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/stall_cause.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class PlanExecutor final : public PlannedMoves {
 public:
  // Enough that a stream of 1 MiB chunks at 25 GB/s survives a thread's wake-up of 0.2 ms.
  static constexpr size_t kMaxCopies = kPlannedCopies;

  // `residency` outlives this.
  explicit PlanExecutor(Residency& residency);
  ~PlanExecutor() override;
  PlanExecutor(const PlanExecutor&) = delete;
  PlanExecutor& operator=(const PlanExecutor&) = delete;

  // Begins to follow the plan with operator `first`, the next one, counted since the start of time.
  // Evicts at once the ranges that must not be there when the round begins, and fetches those that
  // are missing in the background. FAILED_PRECONDITION: a range that must leave is pinned. Others:
  // a write-back failed. Must not be called while active.
  absl::Status Start(std::shared_ptr<const BoundPlan> plan, int64_t first);
  // Ends the plan without a cause and waits until all that it began has landed.
  void Stop();
  // Ends the plan with a cause. Does not wait.
  void Abandon(Divergence cause);
  // Returns why the plan ended, if not by Stop; kOperator while active.
  Divergence cause() const { return cause_.load(std::memory_order_acquire); }

  // Blocks until the evictions that are due are made, or cannot be before the operators go on.
  void AwaitEvictions();
  // Pause waits for what is in flight or due. From then to Resume no fetch begins, and the executor
  // holds no HOST slot.
  void Pause();
  void Resume();
  // Blocks until nothing moves, or can move, unless the operators go on.
  void AwaitRest();

  // Reports how far the operators are, counted since the start of time: 2 n + 1 when operator n has
  // begun and all before it have ended, 2 n + 2 when it has ended. Threads may call it in any
  // order; a smaller number than before changes nothing. Makes a system call only if a thread waits
  // for this very moment.
  void Progressed(int64_t progress) {
    int64_t before = progress_.load(std::memory_order_relaxed);
    while (before < progress && !progress_.compare_exchange_weak(before, progress)) {
    }
    if (progress >= gate_.load(std::memory_order_seq_cst)) [[unlikely]]
      OpenGates();
  }

  bool active() const override { return active_.load(std::memory_order_acquire); }
  bool paused() const override { return paused_.load(std::memory_order_acquire); }
  bool IsComing(RangeId range, bool blocked) override;
  bool KeepsGradient(RangeId range) const override;
  bool IsEvicting() const override;
  StallCause WaitingFor() const override;
  void Interrupt(Divergence cause) override;

 private:
  static constexpr size_t kIn = 0, kOut = 1, kBack = 2, kNumWorkers = 3;
  static constexpr int64_t kNoGate = std::numeric_limits<int64_t>::max();
  enum class Activity : uint8_t {
    kIdle,     // No plan, or nothing more to do in it.
    kWorking,  // Runs until its next wait.
    kGate,     // Waits for the operators.
    kTurn,     // Waits for another thread's move of the same range.
    kPlacing,  // In Residency::BeginFetch.
    kBudget,   // Waits for the operators, because the budget is used up.
    kPinned,   // Waits for the operators, because a range that should leave is pinned.
    kAcquire,  // Waits for the chunk in HOST.
    kCopies,   // Waits for a copy to end.
  };
  struct Worker {
    Activity activity = Activity::kIdle;
    int64_t gate = kNoGate;
    // In kTurn: the range of the plan, and the moves that must be made before.
    int32_t turn_range = 0;
    BoundPlan::Turn turn;
    ChunkStore* store = nullptr;  // In kAcquire: the chunk and its store.
    ChunkId chunk;
  };
  struct Landing {
    CopyEvent event;
    HostChunk host;
    bool ends_fetch = false;
  };

  void RunFetches();
  void RunEvictions(size_t worker);
  void RunLandings();
  void FollowFetches(const BoundPlan& plan, absl::Span<const PlannedResident> first_fetches);
  void FollowEvictions(const BoundPlan& plan, size_t worker);
  // Return false when the plan has ended.
  bool Fetch(const BoundPlan& plan, const PlannedFetch& fetch, int64_t gate, BoundPlan::Turn turn);
  bool Evict(const BoundPlan& plan, size_t worker, const PlannedEviction& eviction, int64_t gate,
             BoundPlan::Turn turn);
  bool CopyIn(RangeId range);
  bool WaitForTurn(size_t worker, int32_t range, BoundPlan::Turn turn);
  bool WaitForGate(size_t worker, int64_t gate, Activity activity);
  bool WaitForCopies();
  void SetActivity(size_t worker, Activity activity, ChunkStore* store = nullptr,
                   ChunkId chunk = {});
  // Reports that the worker is at the end of its plan.
  void Rest(size_t worker);
  void OpenGates();
  void UpdateGate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsTurn(int32_t range, BoundPlan::Turn turn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AtGate(size_t worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OutAtGate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return AtGate(kOut) && AtGate(kBack);
  }
  bool Stuck(bool blocked) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Residency& residency_;

  std::atomic<bool> active_{false};
  std::atomic<bool> paused_{false};
  std::atomic<Divergence> cause_{Divergence::kOperator};
  std::atomic<int64_t> progress_{0};
  std::atomic<int64_t> gate_{kNoGate};  // The smallest gate that a worker waits for.

  mutable Mutex mutex_;
  std::condition_variable changed_;  // For everything below; few threads wait.
  std::shared_ptr<const BoundPlan> plan_ ABSL_GUARDED_BY(mutex_);
  std::vector<PlannedResident> first_fetches_ ABSL_GUARDED_BY(mutex_);
  std::vector<BoundPlan::Turn> moves_
      ABSL_GUARDED_BY(mutex_);                            // By range of the plan: made so far.
  std::vector<bool> is_fetched_ ABSL_GUARDED_BY(mutex_);  // By RangeId: the plan fetches it.
  std::vector<bool> is_kept_ ABSL_GUARDED_BY(mutex_);     // By RangeId: as KeepsGradient.
  int64_t first_ ABSL_GUARDED_BY(mutex_) = 0;             // Its first operator.
  int64_t run_ ABSL_GUARDED_BY(mutex_) = 0;               // Number of the Start.
  bool quitting_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<Worker, kNumWorkers> workers_ ABSL_GUARDED_BY(mutex_);
  std::deque<Landing> landings_ ABSL_GUARDED_BY(mutex_);
  // Copies in flight: landings_ and the one that is waited for.
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<std::thread, 4> threads_;
};

}  // namespace gemini::client
