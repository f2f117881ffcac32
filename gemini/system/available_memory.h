// SPDX-License-Identifier: Apache-2.0
// How much memory this machine has left, for defaults of budgets.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"

namespace gemini {

// Returns the bytes that the kernel thinks can be taken without swapping (MemAvailable). INTERNAL:
// it does not say.
absl::StatusOr<int64_t> AvailableMemory();

}  // namespace gemini
