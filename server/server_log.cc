// SPDX-License-Identifier: Apache-2.0
#include "server/server_log.h"

#include <memory>

#include "spdlog/sinks/stdout_sinks.h"

namespace gemini::server {

spdlog::logger& ServerLog() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("geminid", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

}  // namespace gemini::server
