// SPDX-License-Identifier: Apache-2.0
// Writes what gemini-train tells on standard error: one line for each call, with its time. Apart
// from Torch's sources: Torch ships an {fmt} of another version than spdlog's.
// Thread: any.
#pragma once
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

// `level` is "debug", "info", "warning" or "error": lines below it are dropped. Info at first.
void SetLogLevel(absl::string_view level);

// Has each line begin with the rank's number, and drops what is below a warning: the first rank
// says the same for all.
void LogWarningsOfRank(int64_t rank);

void LogDebug(const std::string& line);
void LogInfo(const std::string& line);
void LogWarning(const std::string& line);

}  // namespace gemini::trainer
