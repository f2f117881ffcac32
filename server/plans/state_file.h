// SPDX-License-Identifier: Apache-2.0
// Reads and writes the small files that outlive the server, in its state directory. A file is
// replaced as a whole or not at all.
// Thread: any, one at a time for one name; blocks on the disk, so it runs on a worker.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/unique_fd.h"

namespace gemini::server {

// Makes the directory, mode 0700, and those above it. Errors: as mkdir(2).
absl::Status MakeStateDirectory(const std::string& directory);

// Takes the directory for one server, until the descriptor is closed or its process ends.
// FAILED_PRECONDITION: another one has it; the message says what to do. Others: as open(2).
absl::StatusOr<UniqueFd> LockStateDirectory(const std::string& directory);

// Writes `bytes` to a file of mode 0600 beside `name`, syncs it, and gives it that name: after a
// crash there is the old file or the new one. On an error the old one stays.
absl::Status WriteStateFile(const std::string& directory, const std::string& name,
                            absl::string_view bytes);
// NOT_FOUND: no such file. RESOURCE_EXHAUSTED: it is larger than `max_bytes`. INVALID_ARGUMENT: it
// is no plain file.
absl::StatusOr<std::string> ReadStateFile(const std::string& directory, const std::string& name,
                                          int64_t max_bytes);
// Removes it; nothing when there is none.
void RemoveStateFile(const std::string& directory, const std::string& name);
// Names that end with `suffix`, the latest written first. Leftovers of a crash in the middle of a
// write are removed.
std::vector<std::string> ListStateFiles(const std::string& directory, absl::string_view suffix);

}  // namespace gemini::server
