// SPDX-License-Identifier: Apache-2.0
#include "server/server_log.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "spdlog/async_logger.h"
#include "spdlog/details/thread_pool.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace gemini::server {
namespace {

// About 1 MiB of short lines: a burst fits, and a reader that stopped costs no more.
constexpr size_t kQueuedLines = 4096;

bool IsPrintable(char c) { return c >= 0x20 && c < 0x7f; }

// Writes each event as one line. Text of peers gets into messages in many ways, most of all within
// a status that was made far from here; so what could begin a line or steer a terminal is escaped
// in the one place that all of them pass.
class EscapingSink : public spdlog::sinks::stderr_sink_mt {
  using Sink = spdlog::sinks::stderr_sink_mt;

 public:
  void log(const spdlog::details::log_msg& message) override {
    const auto& payload = message.payload;
    if (std::all_of(payload.begin(), payload.end(), IsPrintable)) {
      Sink::log(message);
      return;
    }
    std::string escaped;
    for (const char c : payload) {
      if (IsPrintable(c)) {
        escaped += c;
      } else {
        fmt::format_to(std::back_inserter(escaped), "\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    spdlog::details::log_msg clean = message;
    clean.payload = escaped;
    Sink::log(clean);
  }
};

// The thread that writes. When the process ends it writes what is queued, unless stderr takes nothing
// any more: then the end does not wait for its reader.
class LogThread {
 public:
  LogThread() {
    // Signals are for the thread that handles them.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    pool_ = std::make_shared<spdlog::details::thread_pool>(
        kQueuedLines, 1, [] { ::pthread_setname_np(::pthread_self(), "gemini-log"); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~LogThread() {
    if (IsServerLogStuck()) {
      (void)new std::shared_ptr<spdlog::details::thread_pool>(std::move(pool_));
    }
  }
  const std::shared_ptr<spdlog::details::thread_pool>& pool() const { return pool_; }

 private:
  std::shared_ptr<spdlog::details::thread_pool> pool_;
};

}  // namespace

bool IsServerLogStuck() {
  pollfd state = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&state, 1, 1000) == 0;
}

spdlog::logger& ServerLog() {
  static const LogThread thread;
  // Never destroyed: threads may log while the process ends; what comes after LogThread is lost.
  static const auto& logger = *new std::shared_ptr<spdlog::async_logger>([] {
    auto made = std::make_shared<spdlog::async_logger>(
        "geminid", std::make_shared<EscapingSink>(), thread.pool(),
        spdlog::async_overflow_policy::overrun_oldest);
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::info);
    return made;
  }());
  return *logger;
}

}  // namespace gemini::server
