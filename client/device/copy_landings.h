// SPDX-License-Identifier: Apache-2.0
// Copies to DEVICE that nobody waits for: a thread sees each end, in their order, and lets go of
// the HOST slot that it reads. The holds end by themselves (HostChunk::EndsByItself): that thread
// takes its own lock, the copy engine's and, for a moment, the ChunkStore's, so whoever finds no
// HOST slot waits for it, whatever else it has locked.
// Thread: any. Bound: kOnlineCopies are under way; one thread at a time calls AwaitRoom and then
//         Add.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "client/copy/copy_engine.h"
#include "client/host/host_chunk.h"
#include "gemini/system/mutex.h"

namespace gemini::client {

class CopyLandings {
 public:
  // `copies`, and the stores of what is added, outlive this.
  explicit CopyLandings(CopyEngine& copies);
  CopyLandings(const CopyLandings&) = delete;
  CopyLandings& operator=(const CopyLandings&) = delete;
  // Blocks until all have ended.
  ~CopyLandings();

  // Blocks until one more may be under way.
  void AwaitRoom();
  // Holds `source` until `copied` is done.
  void Add(CopyEvent copied, HostChunk source);

 private:
  struct Landing {
    CopyEvent copied;
    HostChunk source;
  };
  void Run();

  CopyEngine& copies_;
  Mutex mutex_;
  std::condition_variable added_;
  std::condition_variable landed_;
  // The first one is that which the thread waits for.
  std::deque<Landing> under_way_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gemini::client
