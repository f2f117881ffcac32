// SPDX-License-Identifier: Apache-2.0
// Tells the service manager how the daemon stands (sd_notify(3)), where there is one.
// Thread: any.
#pragma once
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/loop/event_loop.h"

namespace gemini::server {

// Sends `state`, such as "READY=1", to $NOTIFY_SOCKET. OK and nothing done where that is not set.
// Never waits: a manager that does not read is an error.
absl::Status NotifyServiceManager(absl::string_view state);

// Returns how long the manager waits for a sign of life before it kills this process
// (sd_watchdog_enabled(3)). Nothing: it does not watch this process.
std::optional<absl::Duration> WatchdogTimeout();

// Has `loop` tell the manager that it runs, at each half of WatchdogTimeout. A loop whose thread
// is held up says nothing, so the manager ends a daemon that serves nobody. No-op when not watched.
// Owner: the loop's thread, or who has not run it yet.
void FeedWatchdog(EventLoop& loop);

}  // namespace gemini::server
