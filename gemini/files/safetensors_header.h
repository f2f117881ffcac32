// SPDX-License-Identifier: Apache-2.0
// Parses the JSON header of a safetensors file without trust, and writes one.
// Memory: parsing keeps no JSON tree: its cost is that of the tensors named.
// Errors: as safetensors_format.h.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/files/safetensors_format.h"

namespace gemini {

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // In the order of their bytes.
  std::map<std::string, std::string> metadata;
};

// Checks that the tensors fill the `data_bytes` behind the header exactly: no hole, no overlap. The
// header begins at byte 8. `path` is for messages.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes,
                                                         absl::string_view path);

// Returns the whole beginning of a file, length field included, padded so that data starts at a
// multiple of 8, and sets the tensors' places. INVALID_ARGUMENT: as SafetensorsWriter::Create.
struct SafetensorsBeginning {
  std::string bytes;
  std::vector<SafetensorsTensor> tensors;
  int64_t file_bytes = 0;
};
absl::StatusOr<SafetensorsBeginning> MakeSafetensorsBeginning(
    const std::vector<SafetensorsWriter::Declaration>& declarations,
    const std::map<std::string, std::string>& metadata, absl::string_view path);

// Returns a name from a file, fit for a message: escaped, and cut when it is long.
std::string PrintableName(absl::string_view name);

}  // namespace gemini
