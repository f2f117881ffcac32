// SPDX-License-Identifier: Apache-2.0
// Reads small files whole, and writes them durably.
// Errors: as ErrnoStatus, with the path.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

// Returns the content. INVALID_ARGUMENT: not a regular file, or one above `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

// Writes the file and syncs it; an existing one is replaced in place, so a crash may leave half of
// it: write into a directory that nobody reads yet. The directory itself is not synced.
absl::Status WriteTextFile(const std::string& path, absl::string_view content);

// Syncs the entries of a directory. A file system that cannot, such as some that reach a server,
// answers EINVAL, which is no error.
absl::Status SyncDirectory(const std::string& directory);

// Returns the directory that `path` lies in; "." for a bare name.
std::string DirectoryOf(const std::string& path);

// Checks that the file system of `directory` has room. RESOURCE_EXHAUSTED: it has not; the message
// says what needs it, with both numbers.
absl::Status CheckDiskRoom(const std::string& directory, absl::string_view what,
                           int64_t needed_bytes);

}  // namespace gemini
