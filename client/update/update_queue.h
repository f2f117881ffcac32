// SPDX-License-Identifier: Apache-2.0
// The thread that updates bundles while the next forward runs: those that somebody waits for first,
// then in their order (client/host/pending_commits.h). When none is left it does what else was
// given to it.
// Owner:  the model; the destructor finishes what was begun.
// Thread: any. The thread of its own is named gemini-update and calls nothing but what it was
//         given. Where the space has NVMe, the threads of a ChunkMover move chunks for it.
// Errors: an update that fails is tried again when somebody calls Finish, and Finish returns what
//         comes of it; until then whoever waits for a pending bundle gets the error
//         (SpaceUpdates::Fail).
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/host/chunk_mover.h"
#include "client/host/chunk_store.h"
#include "gemini/ids.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class UpdateQueue {
 public:
  // `update` commits a bundle that awaits its commit in `store`, after `bring` has brought its
  // gradient to HOST where that is late, and returns whether it had anything to compute: only then
  // the timeline shows it. `failed` is told why one could not be. All are called on the queue's
  // thread, one at a time. The store outlives this.
  UpdateQueue(ChunkStore& store, std::function<absl::Status(BundleId)> bring,
              std::function<absl::StatusOr<bool>(BundleId)> update,
              std::function<void(const absl::Status&)> failed);
  UpdateQueue(const UpdateQueue&) = delete;
  UpdateQueue& operator=(const UpdateQueue&) = delete;
  // Finishes the updates if they can be, drops the rest of the work.
  ~UpdateQueue();

  // Bundles await their commits.
  void Wake();
  // Has `task` done when no update is left to do.
  void Later(std::function<void()> task);

  // Blocks until no bundle awaits a commit. Errors: of the update, after one more try if it failed
  // before.
  absl::Status Finish();

 private:
  void Run();
  void UpdateAll();

  ChunkStore& store_;
  const std::function<absl::Status(BundleId)> bring_;
  const std::function<absl::StatusOr<bool>(BundleId)> update_;
  const std::function<void(const absl::Status&)> failed_;

  Mutex mutex_ ABSL_ACQUIRED_BEFORE(store_.tiers().mutex);
  std::condition_variable work_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool update_failed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::optional<ChunkMover> mover_;  // Nothing: all chunks are in HOST.
  std::thread thread_;
};

}  // namespace gemini::client
