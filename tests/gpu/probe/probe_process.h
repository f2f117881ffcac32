// SPDX-License-Identifier: Apache-2.0
// A process of a probe's own, with a socket to it. Fork all before the first use of CUDA in the parent.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "gemini/unique_fd.h"

namespace gemini::probe {

// One end. A peer that says nothing for a minute, or has ended, ends this program with what was awaited.
class Channel {
 public:
  explicit Channel(UniqueFd socket);
  void Say(absl::string_view text, int fd = -1) const;
  void Await(absl::string_view text) const;        // The next message, which must be this one.
  UniqueFd AwaitFd(absl::string_view text) const;  // And the descriptor that comes with it.
  std::string Hear() const;                        // The next message.
  int socket() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

class Process {
 public:
  // Runs `body` in a child, which ends with it.
  explicit Process(const std::function<void(Channel&)>& body);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();  // Kills it, if it still runs.

  const Channel& channel() const { return channel_; }
  void Kill();  // SIGKILL; returns when it is gone.
  int Wait();   // Its exit status, -1 for a signal.

 private:
  pid_t child_ = -1;
  Channel channel_;
};

}  // namespace gemini::probe
