// SPDX-License-Identifier: Apache-2.0
// The server's log: one line an event, to stderr. Characters that would begin another line or steer
// a terminal are escaped, whoever they are from.
// Thread: any; none waits: a thread of the log's own writes, and where stderr's reader stopped the
//         oldest of 4,096 waiting lines is lost. Lines still waiting are written at exit.
// Level:  warn (an embedded server is quiet) until a program sets another.
#pragma once
#include "spdlog/logger.h"

namespace gemini::server {

spdlog::logger& ServerLog();

// True when stderr has taken nothing for a second: exit() would wait for who reads it.
bool IsServerLogStuck();

}  // namespace gemini::server
