// SPDX-License-Identifier: Apache-2.0
// Chooses a chunk size for a module of which nothing but its tensors is known: the one that the
// chunk-size search picks for a plain walk over them, forward and back. What operators really do is
// learned from the first step; a chunk's size cannot change then.
// Pure:   no clock, no I/O. Takes up to half a second for a large model.
#pragma once
#include <cstdint>

#include "absl/types/span.h"
#include "client/torch/model/module_tensors.h"
#include "gemini/plan/trace.h"
#include "gemini/policy_options.h"
#include "gemini/state_format.h"

namespace gemini::client::front {

// The round of a training step that uses each tensor once forward, in their order, and once back.
Trace WalkOf(absl::Span<const hooks::ModuleTensor> tensors, const StateFormat& format,
             int64_t device_bytes);

// Returns the size of a chunk; `most_chunk_bytes`, a power of two of at least 64 KiB, where the
// search finds none.
int64_t ChooseChunkBytes(const Trace& walk, int64_t device_bytes, int64_t most_chunk_bytes,
                         const PolicyOptions& policy);

}  // namespace gemini::client::front
