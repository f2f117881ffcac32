// SPDX-License-Identifier: Apache-2.0
// Where a daemon and its clients meet, and where the daemon keeps its state, unless options say
// otherwise.
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

// Returns the socket at which a client finds its user's daemon: the first that is there of
// $XDG_RUNTIME_DIR/gemini (of a user's service, or by hand), /run/geminid/USER (of the system
// service geminid@USER) and /run/gemini. Where none is there, the first of these names, for the
// message of who connects. USER is the name of the effective uid.
std::string DefaultSocketPath();

// As DefaultSocketPath, with other folders in place of /run/gemini and /run/geminid.
std::string SocketPathBelow(const std::string& system_directory,
                            const std::string& accounts_directory);

}  // namespace gemini
