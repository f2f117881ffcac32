// SPDX-License-Identifier: Apache-2.0
// Makes, calls, watches and ends the communicators that this rank has with NCCL.
// Calls:  NCCL does not block. Where a call returns before NCCL has finished it, this polls its
//         state until it is finished or anything fails.
// Errors: the first one is everybody's. Then every communicator is aborted, each by a thread of its
//         own (NVIDIA/nccl issue 1013), and no call is made any more.
// Thread: one makes communicators and calls; any may fail.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/mutex.h"
#include "trainer/parallel/exchange_device.h"
#include "trainer/parallel/nccl_library.h"

namespace gemini::trainer {

// The first failure, which outlives the communicators. Any thread may ask.
class FirstFailure {
 public:
  // Returns whether `why` is the first.
  bool Set(absl::Status why);
  absl::Status status() const;

 private:
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class NcclComms {
 public:
  // `look` is called many times a second, by the thread that watches, until Stop or the end.
  NcclComms(const NcclLibrary& nccl, std::shared_ptr<ExchangeDevice> device,
            std::chrono::steady_clock::duration limit, std::function<void()> look);
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;
  // Waits for the threads that abort.
  ~NcclComms();

  // COLLECTIVE over all ranks. It blocks, for the limit at most, as Split does.
  absl::StatusOr<NcclComm*> MakeWorld(const NcclId& id, int64_t rank, int64_t num_ranks);
  // COLLECTIVE over the ranks of `whole`. Returns null for NcclLibrary::kNoColor. With
  // `most_ctas` > 0 what waits holds no more than so many of the GPU's multiprocessors.
  absl::StatusOr<NcclComm*> Split(NcclComm* whole, int64_t color, int64_t key, int most_ctas);
  // Makes calls that begin one exchange of `comm`, between ncclGroupStart and ncclGroupEnd. They
  // are through when it returns, and the exchange is enqueued.
  absl::Status Group(NcclComm* comm, absl::string_view what,
                     absl::FunctionRef<absl::Status(const NcclLibrary& nccl)> calls);
  // COLLECTIVE. Says goodbye to the other ranks and gives everything back, unless anything failed.
  void Finish();

  // Fails everything, unless it has failed already.
  void Fail(absl::Status why);
  const std::shared_ptr<FirstFailure>& failure() const { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;
  // Waits until NCCL is through with what it was told of `comm`. `deadline` may be the end of time.
  absl::Status Await(NcclComm* comm, absl::string_view what, Clock::time_point deadline);
  // Takes note of a result. An error is everybody's.
  absl::Status Check(NcclResult result, absl::string_view what, NcclComm* comm);
  void Watch();  // The thread's.

  const NcclLibrary nccl_;
  const std::shared_ptr<ExchangeDevice> device_;
  const Clock::duration limit_;
  const std::function<void()> look_;
  const std::shared_ptr<FirstFailure> failure_ = std::make_shared<FirstFailure>();
  // Held over every call of NCCL, none of which blocks, but for aborts.
  Mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<NcclComm*> comms_ ABSL_GUARDED_BY(mutex_);  // Those that are there.
  std::vector<std::jthread> aborting_ ABSL_GUARDED_BY(mutex_);
  // Where NCCL writes those that a split makes, until they are there.
  std::list<NcclComm*> making_;
  std::jthread watcher_;
};

}  // namespace gemini::trainer
