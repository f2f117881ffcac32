// SPDX-License-Identifier: Apache-2.0
#include "server/plans/plan_service.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gemini/plan/plan_wire.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/plan_effort.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"
#include "server/loop/server_log.h"
#include "server/plans/calibration.h"
#include "server/plans/state_file.h"

namespace gemini::server {
namespace {

// Some hundreds of the largest traces seen.
constexpr int64_t kMaxKeptBytes = int64_t{256} << 20;
// Of plans and traces that were handed out. A peer reads what it gets at once, as a rule some MiB.
constexpr int64_t kMaxAnswerBytes = int64_t{256} << 20;

absl::StatusOr<std::string> CopyOf(const UniqueFd& fd, int64_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  int64_t filled = 0;
  while (filled < size_bytes) {
    const ssize_t got = ::pread(fd.get(), bytes.data() + filled, size_bytes - filled, filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read a trace");
    if (got == 0) return absl::DataLossError("a trace's memory ends early");
    filled += got;
  }
  return bytes;
}

// Bounds what planning costs, before anything of that size is made.
absl::Status CheckSize(const Trace& trace, int64_t chunk_bytes) {
  int64_t chunks = static_cast<int64_t>(trace.tensors.size());
  for (const TracedTensor& tensor : trace.tensors) chunks += tensor.size_bytes / chunk_bytes;
  if (chunks > kMaxTraceChunks) {
    return absl::InvalidArgumentError(absl::StrCat("a trace of tensors that take ", chunks,
                                                   " chunks of ", chunk_bytes, " bytes, at most ",
                                                   kMaxTraceChunks, ": use larger chunks"));
  }
  return policies::CheckPlanSteps(policies::PlanSteps(trace, chunk_bytes));
}

}  // namespace

PlanService::PlanService(const ServerOptions& options)
    : nvme_directories_(options.nvme_directories),
      state_directory_(options.state_directory),
      gpu_memory_rate_(options.make_device != nullptr ? std::optional(options.gpu_memory_rate)
                                                      : std::nullopt),
      costs_(options.state_directory, /*device_is_gpu=*/gpu_memory_rate_.has_value()),
      answers_(kMaxAnswerBytes),
      closer_(std::make_unique<WorkerThread>("gemini-rooms")),
      worker_(std::make_unique<WorkerThread>("gemini-plans")) {
  worker_->Run([this, calibrate = options.calibrate_at_start] {
    Open();
    if (calibrate) CalibrateOnce();
  });
}

PlanService::~PlanService() {
  stopping_ = true;
  worker_.reset();
}

void PlanService::Open() {
  if (!state_directory_.empty()) {
    const absl::Status made = MakeStateDirectory(state_directory_);
    if (!made.ok()) {
      ServerLog().warn("nothing is kept between runs: {}: pass --state-dir DIR, or \"\" for none",
                       made.ToString());
      state_directory_.clear();
    }
  }
  if (!state_directory_.empty()) {
    absl::StatusOr<UniqueFd> lock = LockStateDirectory(state_directory_);
    if (lock.ok()) {
      state_lock_ = *std::move(lock);
    } else if (absl::IsFailedPrecondition(lock.status())) {
      ServerLog().warn("traces and costs of this server are kept in memory only: {}",
                       lock.status().ToString());
      state_directory_.clear();
      costs_.DoNotKeep();
    } else {
      // A file system without locks: as if nobody else had the directory.
      ServerLog().warn("{}: another server there would not be noticed", lock.status().ToString());
    }
  }
  traces_.emplace(state_directory_, kMaxKeptBytes);
  calibrated_ = costs_.Load();
}

void PlanService::CalibrateOnce() {
  if (std::exchange(calibrated_, true)) return;
  const CostModel costs = Calibrate(nvme_directories_, gpu_memory_rate_,
                                    [this] { return stopping_.load(std::memory_order_relaxed); });
  if (stopping_) return;  // Cut short: not to be kept.
  costs_.Set(costs);
}

void PlanService::Queue(std::shared_ptr<PlanWait> wait, absl::AnyInvocable<void(UniqueFd)> job) {
  const pid_t process = wait->process();
  turns_.Push(process, [this, wait = std::move(wait), job = std::move(job)]() mutable {
    if (stopping_) return;
    std::optional<UniqueFd> room = wait->Begin();
    if (room.has_value()) job(*std::move(room));
  });
  worker_->Run([this] { turns_.Next()(); });
}

void PlanService::MakePlan(PlanTask task, absl::AnyInvocable<void(absl::StatusOr<MadePlan>)> done) {
  std::shared_ptr<PlanWait> wait = task.wait;
  Queue(std::move(wait),
        [this, task = std::move(task), done = std::move(done)](UniqueFd room) mutable {
          CalibrateOnce();
          done(Make(task, std::move(room)));
        });
}

absl::StatusOr<MadePlan> PlanService::Make(const PlanTask& task, UniqueFd room) {
  const absl::Duration start = MonotonicNow();
  const auto interrupt = [this, start, &task]() -> absl::Status {
    if (stopping_ || task.wait->cancelled()) {
      return absl::CancelledError("nobody waits for the plan");
    }
    if (MonotonicNow() - start < kMaxPlanTime) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "planning took longer than ", absl::FormatDuration(kMaxPlanTime),
        ": chunks are placed on demand. Is the machine busy? Larger chunks make planning faster"));
  };
  GEMINI_RETURN_IF_ERROR(interrupt());
  GEMINI_ASSIGN_OR_RETURN(std::string bytes, CopyOf(room, task.room_bytes));
  room.Reset();
  GEMINI_ASSIGN_OR_RETURN(const Trace trace, DecodeTrace(bytes));
  bytes = std::string();
  GEMINI_RETURN_IF_ERROR(CheckSize(trace, task.chunk_bytes));
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace packed,
                          policies::PackTrace(trace, task.chunk_bytes));
  // A link that the client holds back says nothing about the machine's.
  MeasuredRates measured = task.measured;
  if (task.device_bandwidth > 0) measured.host_to_device = measured.device_to_host = 0;
  CostModel costs = costs_.Refreshed(measured);
  if (task.device_bandwidth > 0) {
    costs = HeldBack(costs, task.device_bandwidth, task.chunk_bytes);
  }
  GEMINI_ASSIGN_OR_RETURN(const Plan plan, policies::MakePlan({.trace = packed,
                                                               .budget_bytes = task.budget_bytes,
                                                               .costs = costs,
                                                               .policy = task.policy,
                                                               .interrupt = interrupt}));
  // Only now: what no plan comes out of is of no use to the next job, and whoever has no plan made
  // has no say in what others' plans reckon with.
  costs_.Refresh(measured);
  traces_->Keep({task.space, trace.phase, TensorsHash(trace.tensors)}, EncodeTrace(trace));
  const std::string encoded = EncodePlan(plan);
  MadePlan made;
  GEMINI_ASSIGN_OR_RETURN(made.fd, answers_.Make(task.wait->session(), "gemini-plan", encoded));
  made.size_bytes = static_cast<int64_t>(encoded.size());
  made.phase = trace.phase;
  made.device_floor_bytes = policies::DeviceFloorBytes(packed);
  made.inputs = {.budget_bytes = task.budget_bytes,
                 .chunk_bytes = task.chunk_bytes,
                 .policy = task.policy,
                 .costs = costs};
  ServerLog().info("planned phase '{}' of space {} in {}: {} positions, made by {}, {} a round",
                   absl::CHexEscape(trace.phase), task.space,
                   absl::FormatDuration(MonotonicNow() - start), plan.num_positions(), plan.made_by,
                   absl::FormatDuration(absl::Nanoseconds(plan.prediction.round_ns)));
  return made;
}

void PlanService::FindTrace(TraceKey key, std::shared_ptr<PlanWait> wait,
                            absl::AnyInvocable<void(absl::StatusOr<FoundTrace>)> done) {
  const uint64_t session = wait->session();
  Queue(std::move(wait),
        [this, session, key = std::move(key), done = std::move(done)](UniqueFd) mutable {
          const std::string* trace = traces_->Find(key);
          if (trace == nullptr) return done(FoundTrace());
          absl::StatusOr<UniqueFd> fd = answers_.Make(session, "gemini-trace", *trace);
          if (!fd.ok()) return done(fd.status());
          done(FoundTrace{*std::move(fd), static_cast<int64_t>(trace->size())});
        });
}

void PlanService::Drop(UniqueFd fd, absl::AnyInvocable<void()> closed) {
  closer_->Run([fd = std::move(fd), closed = std::move(closed)]() mutable {
    fd.Reset();
    closed();
  });
}

void PlanService::TakeBackAnswer(uint64_t session) {
  std::vector<AnswerMemory::Answer> answers = answers_.Remove(session);
  if (answers.empty()) return;
  closer_->Run([answers = std::move(answers)] { AnswerMemory::Cut(answers); });
}

}  // namespace gemini::server
