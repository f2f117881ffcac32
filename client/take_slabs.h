// SPDX-License-Identifier: Apache-2.0
// Descriptors of slabs beyond those that came with an answer, for a message holds only so many.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/connection.h"
#include "gemini/unique_fd.h"

namespace gemini::client {

// Asks for slabs of `space` (0: of the lease's DEVICE) from slab `first` on, and adds them to `slabs` until it has
// `count`. Errors: as Connection::Call; INVALID_ARGUMENT: the server sends fewer than there are.
absl::Status TakeSlabs(Connection& connection, uint64_t space, int64_t first, int64_t count,
                       std::vector<UniqueFd>& slabs);

}  // namespace gemini::client
