// SPDX-License-Identifier: Apache-2.0
// Finds the default paths of the daemon's socket, by which clients find it, and of its state files.
// Thread: any; environment variables are read at each call.
#pragma once
#include <string>

namespace gemini {

// The socket's name inside the runtime directory.
inline constexpr char kSocketName[] = "geminid.sock";

// Returns where a daemon makes its socket: $RUNTIME_DIRECTORY (set by systemd), else
// $XDG_RUNTIME_DIR/gemini, else /run/gemini. Touches no file.
std::string DefaultRuntimeDirectory();

// Returns $STATE_DIRECTORY (set by systemd), else $XDG_STATE_HOME/gemini, else /var/lib/gemini.
// Touches no file.
std::string DefaultStateDirectory();

// Returns the socket at which a client finds its user's daemon. It is the first that exists of
// $XDG_RUNTIME_DIR/gemini (a user's service, or a daemon started by hand), /run/geminid/USER (the
// system service geminid@USER) and /run/gemini. If none exists, it is the one in XDG_RUNTIME_DIR,
// or in /run/gemini if that variable is not set, so that an error message can name it. USER is the
// name of the effective uid.
std::string DefaultSocketPath();

// As DefaultSocketPath, with other folders in place of /run/gemini and /run/geminid.
std::string SocketPathBelow(const std::string& system_directory,
                            const std::string& accounts_directory);

}  // namespace gemini
