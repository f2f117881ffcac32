// SPDX-License-Identifier: Apache-2.0
// Turns errno into an absl::Status whose code is the project's contract (docs/style.md, errors).
#pragma once
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gemini {

// Returns a Status that reads "<what>: <strerror>". `what` names the call and its object, such as
// "fallocate 256 MiB for slab 3". ENOMEM, ENOSPC, EDQUOT, EMFILE, EFBIG: RESOURCE_EXHAUSTED.
// ENOENT: NOT_FOUND. EEXIST: ALREADY_EXISTS. EACCES, EPERM, EROFS: PERMISSION_DENIED. EINVAL,
// ENAMETOOLONG, ELOOP, ENOTDIR: INVALID_ARGUMENT. EPIPE, ECONNRESET, ECONNREFUSED, ENOTCONN:
// UNAVAILABLE. EIO: DATA_LOSS. Others: INTERNAL.
absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace gemini
