// SPDX-License-Identifier: Apache-2.0
// Says where kernels find the values for the trust ratio of a run of elements
// (client/kernels/trust_run.h).
#pragma once
#include <cstdint>

#include "client/kernels/update_streams.h"

namespace gemini::client {

// A run has two sets of streams, because fp32 states beside 16-bit parameters fill two chunks.
// Elements before `split` are in `lower`; element `split` is element 0 of `upper`. Only the old
// streams are set.
struct TrustStreams {
  UpdateStreams lower, upper;
  int64_t split = 0;
};

}  // namespace gemini::client
