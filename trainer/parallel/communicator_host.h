// SPDX-License-Identifier: Apache-2.0
// Implements Communicator in host memory, over a RankTransport that one thread owns.
// Order: operations are begun first in, first out, one collective at a time. Messages are begun and
//        left to themselves, so two ranks may send to each other before they receive.
// Sums:  an all-to-all and a fold in each rank, then, of an all-reduce, an all-gather; in slices of
//        4 MiB, for which it has memory of its own.
// Waiting: the thread looks again after a pause that grows to half a millisecond, so that a rank
//        that waits leaves its processor to others.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "gemini/system/mutex.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/rank_transport.h"

namespace gemini::trainer {

class CommunicatorHost : public Communicator {
 public:
  // Makes the transport on the thread that owns it, and waits for that.
  using MakeTransport = absl::AnyInvocable<absl::StatusOr<std::unique_ptr<RankTransport>>()>;
  static absl::StatusOr<std::unique_ptr<CommunicatorHost>> Make(int64_t rank, int64_t num_ranks,
                                                                MakeTransport make_transport);
  // Waits until all that was issued is done: other ranks have to issue theirs.
  ~CommunicatorHost() override;

 protected:
  Work Issue(Operation operation) override;
  absl::Status Prepare(const RankGroup& group) override;

 private:
  class HostWork;
  class Exchange;
  struct Item {
    std::unique_ptr<Exchange> exchange;
    std::shared_ptr<HostWork> work;
  };

  CommunicatorHost(int64_t rank, int64_t num_ranks);
  Work Enqueue(std::unique_ptr<Exchange> exchange);
  // What the thread runs.
  void Run();
  // Waits for something to do, or for `pause` where something is under way. Returns whether the
  // thread goes on.
  bool Take(std::chrono::steady_clock::duration pause);
  // Begins what may begin.
  void BeginNext();
  // Helps on what is under way. Returns whether anything ended.
  bool Advance();

  // Of the thread alone:
  std::unique_ptr<RankTransport> transport_;
  absl::Status failed_;       // The first failure.
  std::deque<Item> waiting_;  // Issued, and not begun.
  std::deque<Item> begun_;
  bool in_collective_ = false;  // Whether one of them is.

  Mutex mutex_;
  std::condition_variable issued_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace gemini::trainer
