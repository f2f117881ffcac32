// SPDX-License-Identifier: Apache-2.0
// Parses the command line of gemini-train: flags, the file of --config, and what --resume takes
// over.
// Order:  flags win over the file of --config, which wins over the run.toml of a run that is
//         resumed, which wins over the defaults.
// Errors: INVALID_ARGUMENT, as in gemini/config/key_table.h. NOT_FOUND: the file of --config, or
//         with --resume the run.toml of --output, is not there.
#pragma once
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/config/key_table.h"
#include "trainer/config/run_config.h"

namespace gemini::trainer {

struct CommandLine {
  RunConfig config;
  bool help = false;     // Print HelpText() and exit with 0; `config` is not checked.
  bool version = false;  // Likewise, the version.
  Flags flags;           // What the command line itself says.
  // For the log: keys that a resumed run takes with another value than before.
  std::vector<std::string> changes;
};

// `arguments` are those behind the program's name.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> arguments);

// Puts the line of the file of --config before a message on keys that it has, as
// KeyTable::AtItsLine.
absl::Status AtItsLine(const absl::Status& refused, const CommandLine& line);

std::string HelpText();

// Where the resolved configuration of a run lies.
std::string RunTomlPath(const RunConfig& config);

}  // namespace gemini::trainer
