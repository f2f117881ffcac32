// SPDX-License-Identifier: Apache-2.0
// Processes of a probe's own. Fork all before the first use of CUDA in the process that forks.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/unique_fd.h"

namespace gemini::probe {

// One end of a socket between two processes. Where it is not said otherwise, a peer that says
// nothing for a minute, or has ended, ends this program with what was awaited.
class Channel {
 public:
  explicit Channel(UniqueFd socket);
  void Say(absl::string_view text, int fd = -1) const;
  Packet Hear() const;                             // The next message.
  void Await(absl::string_view text) const;        // The next message, which must be this one.
  UniqueFd AwaitFd(absl::string_view text) const;  // And the descriptor that comes with it.

  // For a peer whose failure is an answer. The next message, or why there is none: "nothing within
  // 60 s", "its process has ended".
  std::string HearOrWhyNot() const;
  std::string Ask(absl::string_view text) const;  // The same, after saying `text`.

 private:
  UniqueFd socket_;
};

class Process {
 public:
  // Runs `body` in a child, which ends with it, or with this process.
  explicit Process(const std::function<void(Channel&)>& body);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();  // Kills it, if it still runs.

  const Channel& channel() const { return channel_; }
  void Signal();  // SIGKILL, and doesn't wait for its end.
  int Wait();     // Its exit status, or minus the signal that ended it.
  void Kill();    // Both.

 private:
  pid_t child_ = -1;  // Until it was waited for.
  Channel channel_;
};

// Asks in a process of its own, and answers how that ended if not well: what goes wrong with one
// question is no other's, and one that hangs is given up after two minutes.
void AskInAProcess(absl::string_view name, const std::function<void()>& ask);

}  // namespace gemini::probe
