// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_log.h"

#include <algorithm>
#include <memory>
#include <string>

#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace gemini::trainer {
namespace {

spdlog::logger& Logger() {
  static spdlog::logger& logger = *[] {
    auto* made =
        new spdlog::logger("gemini-train", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %l: %v");
    return made;
  }();
  return logger;
}

}  // namespace

void SetLogLevel(absl::string_view level) {
  Logger().set_level(spdlog::level::from_str(std::string(level)));
}

void LogWarningsOfRank(int64_t rank) {
  Logger().set_pattern("%H:%M:%S %l: rank " + std::to_string(rank) + ": %v");
  Logger().set_level(std::max(Logger().level(), spdlog::level::warn));
}

void LogDebug(const std::string& line) { Logger().debug("{}", line); }
void LogInfo(const std::string& line) { Logger().info("{}", line); }
void LogWarning(const std::string& line) { Logger().warn("{}", line); }

}  // namespace gemini::trainer
