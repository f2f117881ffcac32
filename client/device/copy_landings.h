// SPDX-License-Identifier: Apache-2.0
// Releases HOST slots when the copies to DEVICE that read them are done, so that no thread has to
// wait for these copies. A thread sees each copy end, in their order. Such holds end without help
// (HostChunk::EndsByItself): the thread takes only its own lock, the copy engine's and, for a
// moment, the ChunkStore's. So a thread that finds no HOST slot may wait for one of these, whatever
// else it has locked.
// Thread: any.
// Bound: kFetchCopies are in flight, and one more for each other thread that calls AwaitRoom and
// then Add at the same time.
#pragma once
#include <condition_variable>
#include <cstdint>
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
  // Blocks until all copies have ended.
  ~CopyLandings();

  // Blocks until one more copy may be in flight.
  void AwaitRoom();
  // Blocks until all that was added before has ended.
  void AwaitAll();
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
  // The thread waits for the first one.
  std::deque<Landing> under_way_ ABSL_GUARDED_BY(mutex_);
  int64_t num_landed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gemini::client
