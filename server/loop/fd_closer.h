// SPDX-License-Identifier: Apache-2.0
// Closes descriptors whose close(2) a peer can make block for as long as it likes: a lingering
// socket, or a file of the peer's own file system. One separate thread closes them in turn.
// Thread: any. A close that blocks holds up all descriptors behind it. Callers therefore look at
//         num_waiting, and take no more descriptors from peers while it is high.
#pragma once
#include <cstdint>
#include <memory>

#include "gemini/system/unique_fd.h"

namespace gemini::server {

class FdCloser {
 public:
  FdCloser();
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;
  // Does not wait for a close under way: where that blocks, its thread is left to end by itself, or
  // with the process, whose end closes what is left without lingering.
  ~FdCloser();

  void Close(UniqueFd fd);
  // Given and not closed yet.
  int64_t num_waiting() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // The thread's, too.
};

}  // namespace gemini::server
