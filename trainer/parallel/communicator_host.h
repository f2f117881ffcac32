// SPDX-License-Identifier: Apache-2.0
// Implements Communicator in host memory, over a RankTransport that one thread owns.
// Order: operations are begun first in, first out, and one collective is under way at a time. A
//        message is begun and left to itself, so two ranks may send to each other before they
//        receive. But one that was issued behind a collective is not begun before it.
// Sums:  a reduce-scatter is an all-to-all and a fold in each rank. An all-reduce is that and an
//        all-gather. Both go by slices of 4 MiB, through up to 12 MiB of memory that stays.
// Waiting: the thread sleeps until its bell rings. This process rings it for each operation that it
//        issues, and a rank of this machine rings it when that rank begins or finishes its part of
//        a transfer. Ranks of other machines ring no bell, and neither does progress within a
//        transfer. So the thread also tests its transfers after an eighth of the time that it has
//        waited, and at least every half a millisecond. A rank that waits leaves its processor to
//        others.
// Failures: nothing of what is under way is touched any more, and neither is the transport: its end
//        would wait for ranks that wait for this one.
#pragma once
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "gemini/system/mutex.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/rank_bell.h"
#include "trainer/parallel/rank_transport.h"

namespace gemini::trainer {

class CommunicatorHost : public Communicator {
 public:
  // Makes the transport on the thread that owns it, and waits for that.
  using MakeTransport = absl::AnyInvocable<absl::StatusOr<std::unique_ptr<RankTransport>>()>;
  static absl::StatusOr<std::unique_ptr<CommunicatorHost>> Make(int64_t rank, int64_t num_ranks,
                                                                MakeTransport make_transport);
  // Waits until everything that was issued is done, for which other ranks have to issue theirs. It
  // does not wait behind a failure.
  ~CommunicatorHost() override;

 protected:
  Work Issue(Operation operation) override;
  absl::Status Prepare(const RankGroup& group) override;

 private:
  class HostWork;
  class Exchange;
  class GroupSetup;
  class ByteExchange;
  class ShiftExchange;
  struct SumMemory;
  class SumExchange;
  struct Item {
    std::unique_ptr<Exchange> exchange;
    std::shared_ptr<HostWork> work;
  };

  CommunicatorHost(int64_t rank, int64_t num_ranks);
  Work Enqueue(std::unique_ptr<Exchange> exchange);
  // Wakes the thread, which cannot end meanwhile.
  void RingOwn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The thread runs these:
  void Run();
  // Takes what was issued. Returns false at the end.
  bool Take();
  // Begins what may begin.
  void BeginNext();
  // Helps on what is under way. Returns whether anything moved on.
  bool Advance();
  // Ends everything with the failure, and leaves its memory to whoever may still write to it.
  void EndAll();

  const std::shared_ptr<SumMemory> sum_memory_;  // What is in it is the thread's, as are these:
  std::unique_ptr<RankTransport> transport_;
  absl::Status failed_;       // The first failure.
  std::deque<Item> waiting_;  // Issued, and not begun.
  std::deque<Item> begun_;
  bool in_collective_ = false;  // Whether one of them is.

  // The transport's, if there is one. Behind a failure the transport stays for ever.
  RankBell* bell_ = nullptr;
  Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace gemini::trainer
