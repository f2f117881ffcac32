// SPDX-License-Identifier: Apache-2.0
// Encodes traces as bytes (gemini/trace.fbs), for messages and files.
// Thread: any. The bytes must not change while they are read: copy what a peer can still write.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/plan/trace.h"

namespace gemini {

// The largest trace as bytes: some 2 million operators with one use each. The largest seen is that
// of a model of 96 blocks, under 1 MiB.
inline constexpr int64_t kMaxTraceBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxPhaseChars = 128;

// Encodes `trace`, which passes CheckTrace. O(size).
std::string EncodeTrace(const Trace& trace);
// Decodes `bytes`, which begin at a multiple of 8, as those of a std::string of more than 15 do.
// INVALID_ARGUMENT: they are no verified trace, the phase is longer than kMaxPhaseChars, or as
// CheckTrace.
absl::StatusOr<Trace> DecodeTrace(absl::string_view bytes);

// Returns the key of kept traces, the same in every process and build for the same tensors.
uint64_t TensorsHash(absl::Span<const TracedTensor> tensors);

}  // namespace gemini
