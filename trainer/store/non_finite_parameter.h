// SPDX-License-Identifier: Apache-2.0
// Looks for a parameter that may explain a loss which is not finite.
#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

// Returns the name of the first parameter that holds a NaN or an infinity, or nothing if none does.
// Errors: of the store.
absl::StatusOr<std::string> FindNonFinite(ParameterStore& store,
                                          const std::vector<ParameterShape>& parameters);

}  // namespace gemini::trainer
