// SPDX-License-Identifier: Apache-2.0
// Tells the service manager how the daemon stands (sd_notify(3)), where there is one.
// Thread: any.
#pragma once
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemini::server {

// Sends `state`, such as "READY=1", to $NOTIFY_SOCKET. OK and nothing done where that is not set.
absl::Status NotifyServiceManager(absl::string_view state);

}  // namespace gemini::server
