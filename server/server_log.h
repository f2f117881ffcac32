// SPDX-License-Identifier: Apache-2.0
// The server's log: one line an event, to stderr. Text from peers is escaped by the caller.
// Thread: any. The level is warn (an embedded server is quiet) until a program sets another.
#pragma once
#include "spdlog/logger.h"

namespace gemini::server {

spdlog::logger& ServerLog();

}  // namespace gemini::server
