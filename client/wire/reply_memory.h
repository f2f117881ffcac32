// SPDX-License-Identifier: Apache-2.0
// Reads bytes that the server sends in memory of its own instead of in a message.
// Thread: any.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/wire/connection.h"

namespace gemini::client {

// Returns the contents of the reply's only descriptor. INVALID_ARGUMENT: there is not exactly one,
// of `size_bytes` (>= 1). ABORTED: the server took it back meanwhile.
absl::StatusOr<std::string> ReadReplyMemory(const Reply& reply, int64_t size_bytes);

}  // namespace gemini::client
