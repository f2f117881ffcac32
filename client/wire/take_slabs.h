// SPDX-License-Identifier: Apache-2.0
// Requests the descriptors of slabs beyond those in an answer, because a message holds only so
// many.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/wire/connection.h"
#include "gemini/system/unique_fd.h"

namespace gemini::client {

// Time-out of requests about slabs: the server's worker may be busy with those of others.
inline constexpr absl::Duration kSlabsTimeout = absl::Seconds(60);

// Requests slabs of `space` (0: of the lease's DEVICE, which the server makes if they do not exist)
// from slab `first` on, and adds them to `slabs` until it has `count`. Errors: as Connection::Call,
// with the slabs received so far in `slabs`. INVALID_ARGUMENT: the server sends fewer than there
// are, or more.
absl::Status TakeSlabs(Connection& connection, uint64_t space, int64_t first, int64_t count,
                       std::vector<UniqueFd>& slabs);

}  // namespace gemini::client
