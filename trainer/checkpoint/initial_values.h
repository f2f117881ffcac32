// SPDX-License-Identifier: Apache-2.0
// Computes initial values of a parameter that no file has. Each depends on the seed and its place
// alone, so that pieces may be made in any order.
// Source: Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, for the
//         bits; Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
#pragma once
#include <cstdint>

#include "absl/types/span.h"

namespace gemini::trainer {

// Fills `values` with elements `first`, first + 1 and so on of a normal distribution around 0.
void FillNormal(uint64_t seed, double deviation, int64_t first, absl::Span<float> values);

}  // namespace gemini::trainer
