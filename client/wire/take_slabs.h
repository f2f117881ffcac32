// SPDX-License-Identifier: Apache-2.0
// Requests the descriptors of slabs that did not fit into the server's first answer, because a
// message holds only a limited number of descriptors.
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

// Requests slabs of `space` (0: of the lease's DEVICE, which the server makes if they do not
// exist), and appends them to `slabs` until it has `count`. Element i of `slabs` is slab first + i.
// Errors: as Connection::Call, with the slabs received so far in `slabs`. INVALID_ARGUMENT: the
// server sends none, or more than were requested.
absl::Status TakeSlabs(Connection& connection, uint64_t space, int64_t first, int64_t count,
                       std::vector<UniqueFd>& slabs);

}  // namespace gemini::client
