// SPDX-License-Identifier: Apache-2.0
// Reads what geminid is told by flags and by a TOML file. A flag wins over the file.
// Units:  sizes as in gemini/byte_size.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/loop/server_options.h"

namespace gemini::server {

struct DaemonOptions {
  std::string runtime_directory;
  ServerOptions server;
  // The GPU that is DEVICE, as CUDA counts them; none: host memory plays it. Without
  // device_memory_given its capacity is not in `server` yet: see UseGpu.
  std::optional<int> gpu;
  bool device_memory_given = false;
  std::string log_level = "info";
  absl::Duration drain_timeout = absl::Seconds(30);
  // Set: print this on stdout and exit with 0 (--help, --version).
  std::string print_and_exit;
};

// A key of the file is a flag's name without the dashes. INVALID_ARGUMENT: as in
// gemini/config/key_table.h, or memory above what `available_bytes`, the machine's free memory,
// allows. NOT_FOUND: no such file. `arguments` are without the program's name.
absl::StatusOr<DaemonOptions> ParseDaemonOptions(absl::Span<const std::string> arguments,
                                                 int64_t available_bytes);

}  // namespace gemini::server
