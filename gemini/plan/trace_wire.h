// SPDX-License-Identifier: Apache-2.0
// Traces as bytes (gemini/trace.fbs), for messages and files.
// Thread: any. The bytes must not change while they are read: copy what a peer can still write.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/plan/trace.h"

namespace gemini {

// What one trace may be as bytes: some 2 million operators with one use each. The largest seen is
// that of a model of 96 blocks, under 1 MiB.
inline constexpr int64_t kMaxTraceBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxPhaseChars = 128;

// O(size). `trace` is one that CheckTrace passes.
std::string EncodeTrace(const Trace& trace);
// `bytes` begin at a multiple of 8, as a std::string's of more than 15 do. INVALID_ARGUMENT: they
// are no verified trace, the phase is longer than kMaxPhaseChars, or as CheckTrace.
absl::StatusOr<Trace> DecodeTrace(absl::string_view bytes);

// What kept traces are found by: the same in every process and build for the same tensors.
uint64_t TensorsHash(absl::Span<const TracedTensor> tensors);

}  // namespace gemini
