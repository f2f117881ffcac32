// SPDX-License-Identifier: Apache-2.0
// What users write for where DEVICE is.
#pragma once
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini {

// Returns the ordinal of a GPU, as CUDA counts them, for "cuda:1" and "cuda" (0); nothing for
// "cpu", "host" and "".
// INVALID_ARGUMENT: anything else.
absl::StatusOr<std::optional<int>> ParseDeviceName(absl::string_view text);

}  // namespace gemini
