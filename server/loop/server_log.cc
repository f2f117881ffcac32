// SPDX-License-Identifier: Apache-2.0
#include "server/loop/server_log.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "spdlog/async_logger.h"
#include "spdlog/details/thread_pool.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace gemini::server {
namespace {

// About 1 MiB of short lines: a burst fits, and a reader that stopped costs no more.
constexpr size_t kQueuedLines = 4096;

// Escapes control characters of messages. It is done here, and not where a message is made, because
// a peer's text gets into statuses at any depth: whatever reaches the log passes this.
class OneLineFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    std::string payload;
    for (size_t i = 0; i < message.payload.size(); ++i) {
      const auto at = static_cast<unsigned char>(message.payload[i]);
      // In UTF-8 the second set of controls, of which one begins a terminal's commands, is C2 80 to
      // C2 9F.
      const bool begins_c1 = at == 0xc2 && i + 1 < message.payload.size() &&
                             (static_cast<unsigned char>(message.payload[i + 1]) & 0xe0) == 0x80;
      if (at >= 0x20 && at != 0x7f && !begins_c1) {
        payload += message.payload[i];
        continue;
      }
      absl::StrAppendFormat(&payload, "\\x%02x", at);
      if (begins_c1) {
        absl::StrAppendFormat(&payload, "\\x%02x",
                              static_cast<unsigned char>(message.payload[++i]));
      }
    }
    spdlog::details::log_msg escaped = message;
    escaped.payload = payload;
    pattern_.format(escaped, line);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<OneLineFormatter>();
  }

 private:
  spdlog::pattern_formatter pattern_;
};

// The thread that writes. When the process ends it writes what is queued, unless stderr takes
// nothing any more: then the end does not wait for its reader.
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
        "geminid", std::make_shared<spdlog::sinks::stderr_sink_mt>(), thread.pool(),
        spdlog::async_overflow_policy::overrun_oldest);
    made->set_formatter(std::make_unique<OneLineFormatter>());
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::info);
    return made;
  }());
  return *logger;
}

}  // namespace gemini::server
