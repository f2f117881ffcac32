// SPDX-License-Identifier: Apache-2.0
// What gemini-train tells on standard error: one line a call, with its time. Apart from Torch's
// sources: Torch ships an {fmt} of another version than spdlog's.
// Thread: any.
#pragma once
#include <string>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

// `level` is "debug", "info", "warning" or "error": lines below it are dropped. Info at first.
void SetLogLevel(absl::string_view level);

void LogDebug(const std::string& line);
void LogInfo(const std::string& line);
void LogWarning(const std::string& line);

}  // namespace gemini::trainer
