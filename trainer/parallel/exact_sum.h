// SPDX-License-Identifier: Apache-2.0
// Adds up what several ranks have as a left fold, so that the bits are the same each time, whoever
// adds.
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>

#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Adds `num_parts` (>= 1) runs of `elements`, which lie one behind the other at `parts`, into
// `sum`, which may be the first of them. Values of 16 bits are added in fp32, and the sum is
// rounded once, to nearest, ties to even. All are aligned to their type.
void FoldSum(SumType type, const std::byte* parts, int64_t num_parts, int64_t elements,
             std::byte* sum);

}  // namespace gemini::trainer
