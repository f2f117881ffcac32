// SPDX-License-Identifier: Apache-2.0
// Lists the GPUs that this process sees. In a build without CUDA it sees none.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gemini::trainer {

// Returns their UUIDs, in the order in which CUDA counts them. No context is made. UNIMPLEMENTED:
// this build has no CUDA, or there is no driver. NOT_FOUND: there is no GPU. UNAVAILABLE: the
// driver fails.
absl::StatusOr<std::vector<std::string>> VisibleGpus();

}  // namespace gemini::trainer
