// SPDX-License-Identifier: Apache-2.0
// Checks whether the ranks that share each sequence can have equal parts of it, and heads to
// compute.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "trainer/families/model_spec.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

// INVALID_ARGUMENT: rows of `sequence` tokens have no equal parts, or the heads of a model that
// divides in the layout's line do not divide by the ranks of ulysses. The message says what would.
absl::Status CheckSequenceSharing(const ModelSpec& spec, const RankLayout& layout,
                                  int64_t sequence);

}  // namespace gemini::trainer
