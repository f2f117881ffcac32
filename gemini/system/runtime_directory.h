// SPDX-License-Identifier: Apache-2.0
// Where a daemon and its clients meet, and where it keeps what outlives it, when nobody says
// otherwise.
#pragma once
#include <string>

namespace gemini {

// The socket's name inside the runtime directory.
inline constexpr char kSocketName[] = "geminid.sock";

// Returns $XDG_RUNTIME_DIR/gemini, or /run/gemini where that is not set. Touches no file.
std::string DefaultRuntimeDirectory();

// Returns $STATE_DIRECTORY (set by systemd), else $XDG_STATE_HOME/gemini, else /var/lib/gemini.
// Touches no file.
std::string DefaultStateDirectory();

// Returns the daemon's socket in DefaultRuntimeDirectory.
std::string DefaultSocketPath();

}  // namespace gemini
