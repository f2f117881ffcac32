// SPDX-License-Identifier: Apache-2.0
// Closes descriptors that a peer made up, whose close may last as long as the peer likes: a socket
// that lingers, a file of its own file system. A thread closes one after the other; nobody waits
// for it.
// Thread: any. What was given before a close that blocks waits behind it, so whoever gives has to
//         look at num_waiting and take no more from peers while there are many.
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
