// SPDX-License-Identifier: Apache-2.0
#include "server/plan_service.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/errno_status.h"
#include "gemini/plan_wire.h"
#include "gemini/status_macros.h"
#include "gemini/trace_wire.h"
#include "policies/plan_effort.h"
#include "policies/planner.h"
#include "policies/range_trace.h"
#include "server/calibration.h"
#include "server/sealed_memfd.h"
#include "server/server_log.h"
#include "server/state_file.h"

namespace gemini::server {
namespace {

// Some hundreds of the largest traces seen.
constexpr int64_t kMaxKeptBytes = int64_t{256} << 20;

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

void PlanService::MakePlan(PlanTask task, absl::AnyInvocable<void(absl::StatusOr<MadePlan>)> done) {
  const uint64_t session = task.session;
  auto job = [this, task = std::move(task), done = std::move(done)]() mutable {
    if (stopping_ || *task.cancelled) return;
    CalibrateOnce();
    absl::StatusOr<MadePlan> plan = Make(task);
    task.room.Reset();
    if (!*task.cancelled) done(std::move(plan));
  };
  worker_->Run(std::move(job), session);
}

absl::StatusOr<MadePlan> PlanService::Make(PlanTask& task) {
  const absl::Time start = absl::Now();
  GEMINI_ASSIGN_OR_RETURN(std::string bytes, CopyOf(task.room, task.room_bytes));
  GEMINI_ASSIGN_OR_RETURN(const Trace trace, DecodeTrace(bytes));
  bytes = std::string();
  // The copy is all that counts from here on: the room's pages need not wait for the plan.
  DestroyMemfd(std::move(task.room), task.room_bytes);
  GEMINI_RETURN_IF_ERROR(CheckSize(trace, task.chunk_bytes));
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace packed,
                          policies::PackTrace(trace, task.chunk_bytes));
  // A link that the client holds back says nothing about the machine's.
  MeasuredRates measured = task.measured;
  if (task.device_bandwidth > 0) measured.host_to_device = measured.device_to_host = 0;
  costs_.Refresh(measured);
  CostModel costs = costs_.costs();
  if (task.device_bandwidth > 0) {
    costs = HeldBack(costs, task.device_bandwidth, task.chunk_bytes);
  }
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kMaxPlanTime);
  const auto interrupt = [this, deadline, &task]() -> absl::Status {
    if (stopping_) return absl::CancelledError("the server ends");
    if (*task.cancelled) return absl::CancelledError("the session that it was for has ended");
    if (std::chrono::steady_clock::now() < deadline) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "planning took longer than ", absl::FormatDuration(kMaxPlanTime),
        ": chunks are placed on demand. Is the machine busy? Larger chunks make planning faster"));
  };
  GEMINI_ASSIGN_OR_RETURN(const Plan plan, policies::MakePlan({.trace = packed,
                                                               .budget_bytes = task.budget_bytes,
                                                               .costs = costs,
                                                               .policy = task.policy,
                                                               .interrupt = interrupt}));
  // Only now: what no plan comes out of is of no use to the next job.
  traces_->Keep({task.space, trace.phase, TensorsHash(trace.tensors)}, EncodeTrace(trace));
  const std::string encoded = EncodePlan(plan);
  MadePlan made;
  GEMINI_ASSIGN_OR_RETURN(made.fd, MakeReadOnlyMemfd("gemini-plan", encoded));
  made.size_bytes = static_cast<int64_t>(encoded.size());
  made.phase = trace.phase;
  made.device_floor_bytes = policies::DeviceFloorBytes(packed);
  made.inputs = {.budget_bytes = task.budget_bytes,
                 .chunk_bytes = task.chunk_bytes,
                 .policy = task.policy,
                 .costs = costs};
  ServerLog().info("planned phase '{}' of space {} in {}: {} positions, made by {}, {} a round",
                   absl::CHexEscape(trace.phase), task.space,
                   absl::FormatDuration(absl::Now() - start), plan.num_positions(), plan.made_by,
                   absl::FormatDuration(absl::Nanoseconds(plan.prediction.round_ns)));
  return made;
}

void PlanService::FindTrace(uint64_t session, TraceKey key,
                            absl::AnyInvocable<void(absl::StatusOr<FoundTrace>)> done) {
  auto job = [this, key = std::move(key), done = std::move(done)]() mutable {
    if (stopping_) return;
    const std::string* trace = traces_->Find(key);
    if (trace == nullptr) {
      done(FoundTrace());
      return;
    }
    absl::StatusOr<UniqueFd> fd = MakeReadOnlyMemfd("gemini-trace", *trace);
    if (!fd.ok()) {
      done(fd.status());
      return;
    }
    done(FoundTrace{*std::move(fd), static_cast<int64_t>(trace->size())});
  };
  worker_->Run(std::move(job), session);
}

}  // namespace gemini::server
