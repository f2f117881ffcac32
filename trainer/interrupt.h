// SPDX-License-Identifier: Apache-2.0
// Ctrl-C (SIGINT) and SIGTERM: the first asks the run to finish its step, save and end; the second
// ends the process at once.
// Owner:  one object a process; the handler touches one lock-free atomic.
#pragma once
#include <signal.h>

namespace gemini::trainer {

class Interrupt {
 public:
  // Takes both signals over until destruction.
  Interrupt();
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
};

}  // namespace gemini::trainer
