// SPDX-License-Identifier: Apache-2.0
// Runs `memstat trace`, which writes the last rounds of a job as a file for ui.perfetto.dev, beside
// what its plan predicts.
#pragma once
#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/wire/connection.h"

namespace gemini::tools {

struct TraceFlags {
  std::string space;
  std::string output;
  std::string phase = "train";
  int64_t rounds = 1;
};

// Adds the subcommand `trace` to `app`; `flags` outlives it.
CLI::App* AddTraceCommand(CLI::App& app, TraceFlags& flags);

// Writes the file anew and says on stdout what is in it. `server` has said hello. NOT_FOUND: no
// such space, or no complete round of that phase. Others: of the server, or of the file; an
// existing file is then unchanged.
absl::Status WriteTrace(client::Connection& server, const TraceFlags& flags);

}  // namespace gemini::tools
