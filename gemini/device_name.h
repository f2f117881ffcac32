// SPDX-License-Identifier: Apache-2.0
// Reads the name by which users say where DEVICE is, such as "cuda:1".
#pragma once
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

// Returns the ordinal of a GPU, as CUDA counts them, for "cuda:1" and "cuda" (0), and no value for
// "cpu", "host" and "". INVALID_ARGUMENT: anything else.
absl::StatusOr<std::optional<int>> ParseDeviceName(absl::string_view text);

}  // namespace gemini
