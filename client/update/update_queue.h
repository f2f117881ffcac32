// SPDX-License-Identifier: Apache-2.0
// Runs the thread that updates bundles while the next forward runs: first those that a thread waits
// for, then the others in their order (client/host/pending_commits.h). When no update is left, it
// runs other tasks that were given to it.
// Owner: the model; the destructor finishes the updates in progress.
// Thread: any. Its own thread is named gemini-update and calls only the given functions. If the
// space has NVMe, the threads of ChunkMover move chunks for it.
// Errors: an update that fails is tried again in Finish, which returns the result. Until then every
// wait for a pending bundle returns the error (SpaceUpdates::Fail).
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
  // `update` updates and commits a bundle of `store`, after `bring` has brought its gradient to
  // HOST if that is late. `update` returns whether it had anything to compute: only then the
  // timeline shows it. `failed` gets the error of a failed update. All are called on the queue's
  // thread, one at a time. The store outlives this.
  UpdateQueue(ChunkStore& store, std::function<absl::Status(BundleId)> bring,
              std::function<absl::StatusOr<bool>(BundleId)> update,
              std::function<void(const absl::Status&)> failed);
  UpdateQueue(const UpdateQueue&) = delete;
  UpdateQueue& operator=(const UpdateQueue&) = delete;
  // Finishes the updates if that is possible, and drops the other tasks.
  ~UpdateQueue();

  // Wakes the thread, because bundles await their commits.
  void Wake();
  // Runs `task` when no update is left to do.
  void Later(std::function<void()> task);

  // Blocks until no bundle awaits a commit. Returns the update's error, after one more try if it
  // failed before.
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
  std::optional<ChunkMover> mover_;  // No value if all chunks are in HOST.
  std::thread thread_;
};

}  // namespace gemini::client
