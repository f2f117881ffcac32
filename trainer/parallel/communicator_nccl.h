// SPDX-License-Identifier: Apache-2.0
// Implements Communicator between GPUs, by NCCL.
// Order:  collectives run in the program's order, on one stream. The thread that issues one calls
//         NCCL itself, so any two ranks see the collectives that they share in one order.
// Memory: of the GPU, or of the host. What is in host memory goes through memory on the GPU; the
//         caller does not wait for it before it asks for it.
// Waiting: Wait for what is in memory of the GPU lets the operators of the calling thread wait, and
//         returns at once. It says OK if nothing has failed so far; a failure that comes later is
//         that of what is issued then. Wait for host memory blocks until the bytes are there.
// Sums:   without `exact` NCCL adds, in an order and, of 16 bits, with roundings of its own. With
//         it a sum is the fold that communicator.h promises: the bits of CommunicatorHost.
// Messages: NCCL knows no tags and compares no sizes. It matches what two ranks send and receive in
//         the order in which they issue it, by MessagePaths. A receiver that expects another size
//         is not told; it gets too few bytes, or waits until the watchdog ends the job. Messages
//         have streams and communicators of their own, so that one which waits holds up no
//         collective and no message of another path.
// Failures: a thread asks NCCL for errors of other ranks and of the network. Behind the first one
//         all communicators are aborted, each by a thread of its own: the abort of one may wait for
//         another (NVIDIA/nccl issue 1013). Nothing waits any more. Streams, and memory on the GPU
//         that is this class's own, stay until the aborts are through.
// Blocking: the first exchange of two ranks connects them, for which both must come. MakeGroup and
//         PrepareMessages do that for messages.
// State:  not yet run on a GPU; tests run it over a library in NCCL's place.
#pragma once
#include <chrono>
#include <deque>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/system/mutex.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/exchange_device.h"
#include "trainer/parallel/nccl_comms.h"
#include "trainer/parallel/nccl_library.h"
#include "trainer/parallel/nccl_paths.h"
#include "trainer/parallel/staged_memory.h"

namespace gemini::trainer {

struct NcclOptions {
  bool exact = false;
  // How long Make, MakeGroup and PrepareMessages wait for the other ranks.
  std::chrono::steady_clock::duration limit = std::chrono::seconds(120);
  int64_t slice_bytes = 16 << 20;  // With `exact` a sum goes by so much at a time.
  // Between which ranks of the world there are messages: between the first, which writes
  // checkpoints, and the others.
  MessagePaths world_messages = MessagePaths::kWithFirst;
};

class CommunicatorNccl final : public Communicator {
 public:
  // COLLECTIVE over the job. `id` is MakeNcclId's of one rank. DEADLINE_EXCEEDED: not all ranks
  // came within the limit. UNAVAILABLE: NCCL or the GPU fails. RESOURCE_EXHAUSTED: the GPU is full.
  static absl::StatusOr<std::unique_ptr<CommunicatorNccl>> Make(
      const NcclLibrary& nccl, std::shared_ptr<ExchangeDevice> device, const NcclId& id,
      int64_t rank, int64_t num_ranks, const NcclOptions& options);
  // Waits until everything that was issued is done, for which other ranks have to issue theirs, and
  // says goodbye to them. Behind a failure it does neither.
  ~CommunicatorNccl() override;

  // FAILED_PRECONDITION: it was called for that group before.
  absl::Status PrepareMessages(const RankGroup& group, MessagePaths paths) override;

 protected:
  Work Issue(Operation operation) override;
  absl::Status Prepare(const RankGroup& group) override;

 private:
  class NcclWork;
  struct Issued;
  struct Placed;

  CommunicatorNccl(const NcclLibrary& nccl, std::shared_ptr<ExchangeDevice> device, int64_t rank,
                   int64_t num_ranks, const NcclOptions& options);
  absl::Status Begin(const NcclId& id);
  absl::StatusOr<NcclPath> PathOf(const Operation& operation) const;
  absl::StatusOr<Work> TryIssue(const std::shared_ptr<Issued>& issued);
  // Brings what is in host memory to the device, and says where it is there.
  absl::StatusOr<Placed> Place(const Operation& operation);
  // Enqueue one, of memory of the device.
  absl::Status Enqueue(const Operation& operation, const NcclPath& path, const Placed& at);
  absl::Status EnqueueAlone(const Operation& operation, const Placed& at);
  absl::Status EnqueueSum(const Operation& operation, const NcclPath& path, const Placed& at);
  // Sends `sent(i)` to the rank at each other place i, and receives `received(i)` from it.
  absl::Status ExchangeParts(const Operation& operation, const NcclPath& path,
                             absl::FunctionRef<absl::Span<const std::byte>(int64_t)> sent,
                             absl::FunctionRef<absl::Span<std::byte>(int64_t)> received);
  // Adds a slice, with `exact`: each rank sends its `part_of(i)` to the rank at each other place i,
  // which adds what it gets to its own and leaves it at `sum`.
  absl::Status FoldSlice(const Operation& operation, const NcclPath& path,
                         absl::FunctionRef<absl::Span<const std::byte>(int64_t)> part_of,
                         std::byte* sum);
  // Returns how many elements of one rank's part a slice has at most.
  int64_t MostOfSlice(const Operation& operation) const;
  // With `exact`: a reduce-scatter, and an all-reduce.
  absl::Status FoldParts(const Operation& operation, const NcclPath& path, const Placed& at);
  absl::Status FoldAll(const Operation& operation, const NcclPath& path, const Placed& at);
  // Takes note of what has ended. Any thread.
  void Look();
  void ShowUnderWay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ExchangeDevice> device_;
  const NcclOptions options_;
  // Before the streams, which end with what is enqueued in them. All of these are destroyed after
  // comms_, whose end waits for aborts.
  StagedMemories staged_;
  std::shared_ptr<ExchangeMemory> folded_;  // What folds add, with `exact`.
  std::unique_ptr<ExchangeStream> stream_;  // Of collectives.
  // By the groups' ids, as the next; null for one rank.
  std::map<int64_t, NcclComm*> comm_of_;
  std::map<int64_t, NcclPaths> paths_of_;
  Mutex mutex_;
  std::deque<std::shared_ptr<Issued>> collectives_ ABSL_GUARDED_BY(mutex_);  // Not done.
  std::deque<std::shared_ptr<Issued>> messages_ ABSL_GUARDED_BY(mutex_);
  NcclComms comms_;  // Last: its thread looks at all of these.
};

}  // namespace gemini::trainer
