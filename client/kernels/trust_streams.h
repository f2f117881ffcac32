// SPDX-License-Identifier: Apache-2.0
// Where kernels find the values for the trust ratio of a run of elements
// (client/kernels/trust_run.h).
#pragma once
#include <cstdint>

#include "client/kernels/update_streams.h"

namespace gemini::client {

// The old streams of both. States of fp32 values beside 16-bit parameters fill two chunks: elements
// from `split` on are in `upper`, whose first is its element 0.
struct TrustStreams {
  UpdateStreams lower, upper;
  int64_t split = 0;
};

}  // namespace gemini::client
