// SPDX-License-Identifier: Apache-2.0
// Writes the server's log to stderr, one line for each event. Characters that would begin another
// line or control a terminal are escaped.
// Thread: any. No caller waits, because a thread of the log writes. If stderr is not read, the
//         oldest of 4,096 queued lines is lost. Queued lines are written at exit.
// Level:  warn, so that an embedded server is quiet, until a program sets another.
#pragma once
#include "spdlog/logger.h"

namespace gemini::server {

spdlog::logger& ServerLog();

// True when stderr has taken nothing for a second: exit() would wait for who reads it.
bool IsServerLogStuck();

}  // namespace gemini::server
