// SPDX-License-Identifier: Apache-2.0
// Makes plans and keeps traces for the owner thread, on a thread of its own, because a plan may
// take seconds, and the disk longer.
// Thread: the owner thread calls; `done` runs on the service's thread, and posts to the owner's.
// Trust:  a trace comes from a client, who may still write to it: its bytes are copied once, then
//         verified, bounded and packed. What was verified is kept; the client's bytes are not.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemini/cost_model.h"
#include "gemini/policy_options.h"
#include "gemini/system/unique_fd.h"
#include "gemini/tier.h"
#include "server/loop/server_options.h"
#include "server/loop/worker_thread.h"
#include "server/plans/answer_memory.h"
#include "server/plans/machine_costs.h"
#include "server/plans/plan_recipe.h"
#include "server/plans/plan_turns.h"
#include "server/plans/plan_wait.h"
#include "server/plans/trace_store.h"

namespace gemini::server {

// What one plan may cost of the service's thread, which all tenants share: its steps are bounded
// (policies/planner/plan_effort.h), and so are the chunks of all tensors, used or not. The steps
// take some seconds at most; where the machine is busy, the planning ends after this time.
inline constexpr int64_t kMaxTraceChunks = int64_t{1} << 21;
inline constexpr absl::Duration kMaxPlanTime = absl::Seconds(5);
// Keeps the bytes of kMaxTraceChunks chunks with all their states far below 2^63. No chunk is
// nearly as large.
inline constexpr int64_t kMaxPlanChunkBytes = int64_t{1} << 32;

struct PlanTask {
  // Its room is a memfd of ours that the client wrote its trace to. Never null.
  std::shared_ptr<PlanWait> wait;
  int64_t room_bytes = 0;
  std::string space;  // To keep the trace by.
  TierMap<int64_t> budget_bytes;
  int64_t chunk_bytes = 0;  // A positive multiple of kPageBytes.
  PolicyOptions policy;
  MeasuredRates measured;
  double device_bandwidth = 0;  // > 0: in place of the measured one, both ways.
};

struct MadePlan {
  UniqueFd fd;  // A memfd of AnswerMemory's.
  int64_t size_bytes = 0;
  std::string phase;
  int64_t device_floor_bytes = 0;
  PlanRecipe inputs;
};

struct FoundTrace {
  UniqueFd fd;  // As above; none: there is no such trace.
  int64_t size_bytes = 0;
};

class PlanService {
 public:
  // Begins with what the state directory keeps. Without a kept cost model it calibrates: at once,
  // or before the first plan.
  explicit PlanService(const ServerOptions& options);
  // Ends the plan under way within some tenths of a second, drops the others.
  ~PlanService();

  // Makes a plan and passes it to `done`. The trace is stored if that succeeds. If the wait is
  // cancelled, planning stops, and `done` may never be called.
  // INVALID_ARGUMENT: no trace, or one of too many chunks. DEADLINE_EXCEEDED: no plan was found
  // within kMaxPlanTime. Other errors are those of policies::MakePlan.
  void MakePlan(PlanTask task, absl::AnyInvocable<void(absl::StatusOr<MadePlan>)> done);
  // Finds a stored trace and passes it to `done`. The wait (never null) has no room, and may be
  // cancelled likewise.
  void FindTrace(TraceKey key, std::shared_ptr<PlanWait> wait,
                 absl::AnyInvocable<void(absl::StatusOr<FoundTrace>)> done);
  // Closes a memfd of ours, which may block, on a thread that no plan holds up. Then calls `closed`
  // on that thread.
  void Drop(
      UniqueFd fd, absl::AnyInvocable<void()> closed = [] {});
  // Takes back the memory of the session's last answer, whose pages go on the same thread.
  void TakeBackAnswer(uint64_t session);
  // Returns the cost model as it was last measured or refreshed. Any thread.
  CostModel costs() const { return costs_.costs(); }

 private:
  // Runs `job` on the worker when its process has its turn, with the room. Drops it if nobody
  // waits.
  void Queue(std::shared_ptr<PlanWait> wait, absl::AnyInvocable<void(UniqueFd)> job);
  absl::StatusOr<MadePlan> Make(const PlanTask& task, UniqueFd room);
  void Open();
  void CalibrateOnce();

  const std::vector<NvmeDirectory> nvme_directories_;
  std::string state_directory_;                  // Empty: nothing is kept on disk.
  UniqueFd state_lock_;                          // Held while the directory is used.
  const std::optional<double> gpu_memory_rate_;  // Nothing: DEVICE is no GPU.
  MachineCosts costs_;
  bool calibrated_ = false;           // The worker's.
  std::optional<TraceStore> traces_;  // The worker's.
  AnswerMemory answers_;
  PlanTurns turns_;  // Each job of the worker takes one.
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<WorkerThread> closer_;
  std::unique_ptr<WorkerThread> worker_;  // Last: its jobs use what is above.
};

}  // namespace gemini::server
