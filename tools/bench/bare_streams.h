// SPDX-License-Identifier: Apache-2.0
// Measures the bound of an update: its streams are read and written at the same addresses and with
// the same kind of store, every value is changed, and nothing else is done.
#pragma once
#include <cstdint>

#include "client/kernels/update_streams.h"

namespace gemini::bench {

// bf16 parameters with low halves, bf16 gradients; `count` is a multiple of 32, outputs are at
// multiples of 64 bytes and are not the inputs. What is stored has no meaning.
void BareStreams(const client::UpdateStreams& streams, int64_t count);

}  // namespace gemini::bench
