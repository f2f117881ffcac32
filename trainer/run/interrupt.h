// SPDX-License-Identifier: Apache-2.0
// Handles Ctrl-C (SIGINT), SIGTERM, SIGUSR1, which mpirun and srun pass on to ranks, and a closed
// terminal (SIGHUP): the first asks the run to finish its step, save and end; a second one ends the
// process at once, unless it is a SIGHUP: a terminal that is closed may send two. A SIGHUP that was
// ignored when the program began, as by nohup, stays so. While this lives SIGPIPE is ignored: a
// reader of the log or of the metrics that goes away is an error of that write, and not the run's
// end.
// Owner:  one object a process; the handler touches one lock-free atomic.
#pragma once
#include <signal.h>

namespace gemini::trainer {

class Interrupt {
 public:
  enum class Tells : bool { kNo, kYes };
  // Takes the signals over until destruction. `tells`: whether this process says that it stops.
  explicit Interrupt(Tells tells = Tells::kYes);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Returns the first signal that came, 0 while none has.
  int signal() const;
  // The status of a process that a signal ended: 130 for SIGINT.
  static int ExitStatus(int signal) { return 128 + signal; }

 private:
  struct sigaction old_interrupt_ = {};
  struct sigaction old_terminate_ = {};
  struct sigaction old_hangup_ = {};
  struct sigaction old_user_ = {};
  struct sigaction old_pipe_ = {};
};

}  // namespace gemini::trainer
