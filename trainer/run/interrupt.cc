// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/interrupt.h"

#include <unistd.h>

#include <atomic>

namespace gemini::trainer {
namespace {

std::atomic<int> first_signal{0};
std::atomic<bool> tells_it{true};
static_assert(std::atomic<int>::is_always_lock_free);

// Async-signal-safe: an atomic, write and _exit.
void Handle(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    if (!tells_it) return;
    constexpr char kText[] =
        "\nStopping: finishing this step, then saving. Once more stops at once, without saving.\n";
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
    return;
  }
  // A terminal that is closed sends it twice, the shell and then the kernel: nobody asked twice.
  if (signal == SIGHUP) return;
  ::_exit(Interrupt::ExitStatus(signal));
}

}  // namespace

Interrupt::Interrupt(Tells tells) {
  first_signal.store(0);
  tells_it.store(tells == Tells::kYes);
  struct sigaction action = {};
  action.sa_handler = &Handle;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // Reads and writes of libraries go on.
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
  ::sigaction(SIGUSR1, &action, &old_user_);
  ::sigaction(SIGHUP, &action, &old_hangup_);
  if (old_hangup_.sa_handler == SIG_IGN) ::sigaction(SIGHUP, &old_hangup_, nullptr);
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, &old_pipe_);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
  ::sigaction(SIGUSR1, &old_user_, nullptr);
  ::sigaction(SIGHUP, &old_hangup_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_, nullptr);
}

int Interrupt::signal() const { return first_signal.load(); }

}  // namespace gemini::trainer
