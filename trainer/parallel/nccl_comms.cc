// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_comms.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

using std::chrono::steady_clock;

// How often the watching thread asks for errors. A rank that fails is known to the others within
// the time that NCCL takes, which is more.
constexpr std::chrono::milliseconds kLook(10);
// NCCL is asked whether it is through after twice the pause before.
constexpr std::chrono::microseconds kLeastPause(5);
constexpr std::chrono::microseconds kMostPause(1000);

absl::Status TooLate(absl::string_view what, steady_clock::duration limit) {
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": not all ranks have come within ",
                   std::chrono::duration_cast<std::chrono::milliseconds>(limit).count(),
                   " ms: see what the others say, and that each reaches the first one's machine"));
}

}  // namespace

bool FirstFailure::Set(absl::Status why) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return false;
  status_ = std::move(why);
  return true;
}

absl::Status FirstFailure::status() const {
  MutexLock lock(mutex_);
  return status_;
}

NcclComms::NcclComms(const NcclLibrary& nccl, std::shared_ptr<ExchangeDevice> device,
                     steady_clock::duration limit, std::function<void()> look)
    : nccl_(nccl), device_(std::move(device)), limit_(limit), look_(std::move(look)) {
  watcher_ = std::jthread([this] { Watch(); });
}

NcclComms::~NcclComms() {
  std::vector<std::jthread> aborting;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  watcher_.join();
  {
    MutexLock lock(mutex_);
    aborting.swap(aborting_);
  }
  aborting.clear();  // Joins them.
  // Behind the abort of what it was split from, nobody makes one any more.
  for (NcclComm* const comm : making_) {
    if (comm != nullptr) nccl_.CommAbort(comm);
  }
}

absl::StatusOr<NcclComm*> NcclComms::MakeWorld(const NcclId& id, int64_t rank, int64_t num_ranks) {
  constexpr absl::string_view kCall = "ncclCommInitRankConfig";
  const auto deadline = steady_clock::now() + limit_;
  NcclConfig config;
  config.blocking = 0;
  NcclComm* comm = nullptr;
  NcclResult result = NcclResult::kSuccess;
  {
    MutexLock lock(mutex_);
    GEMINI_RETURN_IF_ERROR(failure_->status());
    result = nccl_.CommInitRankConfig(&comm, static_cast<int>(num_ranks), id,
                                      static_cast<int>(rank), &config);
    if (comm != nullptr) comms_.push_back(comm);
  }
  GEMINI_RETURN_IF_ERROR(Check(result, kCall, comm));
  GEMINI_RETURN_IF_ERROR(Await(comm, kCall, deadline));
  return comm;
}

absl::StatusOr<NcclComm*> NcclComms::Split(NcclComm* whole, int64_t color, int64_t key,
                                           int most_ctas) {
  constexpr absl::string_view kCall = "ncclCommSplit";
  const auto deadline = steady_clock::now() + limit_;
  NcclConfig config;
  config.blocking = 0;
  if (most_ctas > 0) config.max_ctas = most_ctas;
  NcclComm*& part = making_.emplace_back(nullptr);
  NcclResult result = NcclResult::kSuccess;
  {
    MutexLock lock(mutex_);
    GEMINI_RETURN_IF_ERROR(failure_->status());
    result = nccl_.CommSplit(whole, static_cast<int>(color), static_cast<int>(key), &part, &config);
  }
  GEMINI_RETURN_IF_ERROR(Check(result, kCall, whole));
  GEMINI_RETURN_IF_ERROR(Await(whole, kCall, deadline));
  NcclComm* const made = part;
  {
    MutexLock lock(mutex_);
    GEMINI_RETURN_IF_ERROR(failure_->status());
    if (made != nullptr) comms_.push_back(made);
    making_.pop_back();
  }
  if (made != nullptr) {
    GEMINI_RETURN_IF_ERROR(Await(made, kCall, deadline));
  } else if (color != NcclLibrary::kNoColor) {
    Fail(absl::InternalError("ncclCommSplit made no communicator for a rank of a part"));
    return failure_->status();
  }
  return made;
}

absl::Status NcclComms::Group(NcclComm* comm, absl::string_view what,
                              absl::FunctionRef<absl::Status(const NcclLibrary& nccl)> calls) {
  absl::Status status;
  NcclResult result = NcclResult::kSuccess;
  {
    MutexLock lock(mutex_);
    GEMINI_RETURN_IF_ERROR(failure_->status());
    result = nccl_.GroupStart();
    status = NcclStatus(nccl_, result, absl::StrCat("ncclGroupStart for ", what), comm);
    if (status.ok()) {
      status = calls(nccl_);
      // Also behind an error, which it returns, too: else the next calls were of this group.
      result = nccl_.GroupEnd();
      if (status.ok()) {
        status = NcclStatus(nccl_, result, absl::StrCat("ncclGroupEnd for ", what), comm);
      }
    }
  }
  if (!status.ok()) {
    Fail(std::move(status));
    return failure_->status();
  }
  if (result != NcclResult::kInProgress) return absl::OkStatus();
  // Others may be writing a checkpoint: the watchdog says how long a rank waits for them.
  return Await(comm, what, steady_clock::time_point::max());
}

void NcclComms::Finish() {
  const auto deadline = steady_clock::now() + limit_;
  std::vector<NcclComm*> comms;
  {
    MutexLock lock(mutex_);
    comms = comms_;
  }
  std::ranges::reverse(comms);  // What was split goes before what it was split from.
  for (NcclComm* const comm : comms) {
    NcclResult result = NcclResult::kSuccess;
    {
      MutexLock lock(mutex_);
      if (!failure_->status().ok()) return;
      result = nccl_.CommFinalize(comm);
    }
    if (!Check(result, "ncclCommFinalize", comm).ok()) return;
    if (!Await(comm, "ncclCommFinalize", deadline).ok()) return;
  }
  for (NcclComm* const comm : comms) {
    NcclResult result = NcclResult::kSuccess;
    {
      MutexLock lock(mutex_);
      if (!failure_->status().ok()) return;
      std::erase(comms_, comm);
      result = nccl_.CommDestroy(comm);
    }
    // It has said goodbye, so what others have of it works.
    if (!Check(result, "ncclCommDestroy", nullptr).ok()) return;
  }
}

absl::Status NcclComms::Await(NcclComm* comm, absl::string_view what,
                              steady_clock::time_point deadline) {
  std::chrono::microseconds pause = kLeastPause;
  for (;;) {
    NcclResult state = NcclResult::kSuccess;
    NcclResult result = NcclResult::kSuccess;
    {
      MutexLock lock(mutex_);
      GEMINI_RETURN_IF_ERROR(failure_->status());
      result = nccl_.CommGetAsyncError(comm, &state);
    }
    GEMINI_RETURN_IF_ERROR(Check(result, "ncclCommGetAsyncError", comm));
    GEMINI_RETURN_IF_ERROR(Check(state, what, comm));
    if (state != NcclResult::kInProgress) return absl::OkStatus();
    if (steady_clock::now() >= deadline) {
      Fail(TooLate(what, limit_));
      return failure_->status();
    }
    MutexLock lock(mutex_);
    mutex_.WaitUntil(changed_, steady_clock::now() + pause);
    pause = std::min(2 * pause, kMostPause);
  }
}

absl::Status NcclComms::Check(NcclResult result, absl::string_view what, NcclComm* comm) {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return absl::OkStatus();
  absl::Status status;
  {
    MutexLock lock(mutex_);
    GEMINI_RETURN_IF_ERROR(failure_->status());  // Behind it `comm` may be gone.
    status = NcclStatus(nccl_, result, what, comm);
  }
  Fail(std::move(status));
  return failure_->status();
}

void NcclComms::Fail(absl::Status why) {
  failure_->Set(std::move(why));
  MutexLock lock(mutex_);
  changed_.notify_all();
  for (NcclComm* const comm : comms_) {
    aborting_.emplace_back([this, comm] {
      ::pthread_setname_np(::pthread_self(), "gemini-abort");
      device_->Use().IgnoreError();  // The abort is tried all the same.
      nccl_.CommAbort(comm);
    });
  }
  comms_.clear();
}

void NcclComms::Watch() {
  ::pthread_setname_np(::pthread_self(), "gemini-nccl");
  for (;;) {
    absl::Status failed = device_->Use();
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      mutex_.WaitUntil(changed_, steady_clock::now() + kLook);
      if (stopping_) return;
      for (NcclComm* const comm : comms_) {
        NcclResult state = NcclResult::kSuccess;
        const NcclResult result = nccl_.CommGetAsyncError(comm, &state);
        failed.Update(NcclStatus(nccl_, result, "ncclCommGetAsyncError", comm));
        failed.Update(NcclStatus(nccl_, state, "NCCL, of what was under way", comm));
      }
    }
    look_();
    failed.Update(failure_->status());  // What others saw of the GPU aborts all, too.
    if (!failed.ok()) Fail(std::move(failed));
  }
}

}  // namespace gemini::trainer
