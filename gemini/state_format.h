// SPDX-License-Identifier: Apache-2.0
// Describes how the state of a space's trainable elements is kept, and in which chunks of their
// bundle. Each element has an fp32 value in every format: the master of a 16-bit parameter
// completes it.
//   fp32: param (fp32), exp_avg, exp_avg_sq, grad: 4 chunks, 16 bytes an element.
//   bf16: param (high half of the fp32 value), master (low half: gemini/split_float.h), the fp32
//         moments in two chunks each, grad (bf16): 7 chunks of 2 bytes an element: 14.
//   fp16: param (master rounded to nearest even), master (fp32, two chunks), moments as bf16, grad
//         (fp16): 16.
// An optimizer without a second moment has no exp_avg_sq, which saves 4 bytes an element. 8-bit
// moments of a bundle share its exp_avg chunk (gemini/moment_format.h); an element then takes 12, 8
// and 10 bytes.
// Units: element i of a bundle lies at byte i * ElementBytes(element) of its param and grad chunks,
// up to the payload's end. Where a state fills two chunks, the first has as many elements as fit.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "gemini/chunk_kind.h"
#include "gemini/element_type.h"
#include "gemini/moment_format.h"
#include "gemini/optimizer_kind.h"

namespace gemini {

struct StateFormat {
  ElementType element = ElementType::kFp32;  // The format of parameters and gradients.
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  MomentFormat moments = MomentFormat::kFp32;
  bool operator==(const StateFormat&) const = default;
};

// A few kinds of chunks, in order.
class KindList {
 public:
  constexpr void Add(ChunkKind kind) { kinds_[size_++] = kind; }
  constexpr const ChunkKind* begin() const { return kinds_.data(); }
  constexpr const ChunkKind* end() const { return kinds_.data() + size_; }
  constexpr int64_t size() const { return size_; }

 private:
  std::array<ChunkKind, kNumChunkKinds> kinds_ = {};
  int64_t size_ = 0;
};

// Returns the chunks that together hold the values of kParam, kExpAvg or kExpAvgSq, or gradients.
// The list is empty for a moment that the optimizer does not have. 8-bit moments share one chunk.
constexpr KindList KindsOfValue(const StateFormat& format, ChunkKind value) {
  const bool half = ElementBytes(format.element) == 2;
  KindList kinds;
  if (value == ChunkKind::kExpAvgSq && !HasSecondMoment(format.optimizer)) return kinds;
  if (IsMoment(value) && format.moments == MomentFormat::k8Bit) {
    kinds.Add(ChunkKind::kExpAvg);
    return kinds;
  }
  kinds.Add(value);
  if (value == ChunkKind::kParam && half) {
    kinds.Add(ChunkKind::kMaster);
    if (format.element == ElementType::kFp16) kinds.Add(ChunkKind::kMasterUpper);
  }
  if (value == ChunkKind::kExpAvg && half) kinds.Add(ChunkKind::kExpAvgUpper);
  if (value == ChunkKind::kExpAvgSq && half) kinds.Add(ChunkKind::kExpAvgSqUpper);
  return kinds;
}

// Returns all kinds that an update changes: the chunks of the parameter, then those of the moments.
constexpr KindList UpdatedKinds(const StateFormat& format) {
  KindList kinds;
  for (const ChunkKind value : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    if (value == ChunkKind::kExpAvgSq && format.moments == MomentFormat::k8Bit) continue;
    for (const ChunkKind kind : KindsOfValue(format, value)) kinds.Add(kind);
  }
  return kinds;
}

// Returns the kinds of a trainable bundle: those that an update changes, and the gradient.
constexpr KindList TrainableKinds(const StateFormat& format) {
  KindList kinds = UpdatedKinds(format);
  kinds.Add(ChunkKind::kGrad);
  return kinds;
}

// Returns how many of a bundle's chunks only updates use: masters and moments.
constexpr int64_t NumStateChunks(const StateFormat& format) {
  return UpdatedKinds(format).size() - 1;
}

constexpr int64_t NumMoments(const StateFormat& format) {
  return HasSecondMoment(format.optimizer) ? 2 : 1;
}

// Returns how many bytes of each param chunk tensors may fill, from its beginning, in whole pages.
// That is the whole chunk, unless the 8-bit moments of so many elements and their scales would not
// fit into one. Returns 0 with 8-bit moments if chunk_bytes is not a multiple of 4 *
// kQuantisationBlockElements, or if a chunk cannot hold a block.
constexpr int64_t PayloadBytes(const StateFormat& format, int64_t chunk_bytes) {
  if (format.moments == MomentFormat::kFp32) return chunk_bytes;
  if (chunk_bytes % (4 * kQuantisationBlockElements) != 0) return 0;
  const QuantisedMomentsChunk block = {.elements = kQuantisationBlockElements,
                                       .num_moments = NumMoments(format)};
  const int64_t block_bytes = kQuantisationBlockElements * ElementBytes(format.element);
  return std::min(chunk_bytes / block_bytes, chunk_bytes / block.size_bytes()) * block_bytes;
}

// Returns where the 8-bit moments of a bundle lie in their chunk.
constexpr QuantisedMomentsChunk QuantisedMomentsOf(const StateFormat& format, int64_t chunk_bytes) {
  return {.elements = PayloadBytes(format, chunk_bytes) / ElementBytes(format.element),
          .num_moments = NumMoments(format)};
}

// Returns whether an update may run in place on DEVICE. With 8-bit moments it may not.
constexpr bool UpdatesInPlace(const StateFormat& format) {
  return format.moments == MomentFormat::kFp32;
}

// Returns whether the gradient of a bundle that is updated in HOST may stay on DEVICE until the
// update. It may not where a trust ratio is computed from gradient and parameter before the intent.
constexpr bool TakesLateGradients(const StateFormat& format) {
  return UpdatesInPlace(format) && !IsLayerWise(format.optimizer);
}

// Returns whether plans time trust ratios themselves, because their time depends on where the
// chunks are. It is then left out of the measured compute time of the update's operator.
constexpr bool TimesTrustRatios(const StateFormat& format, bool states_on_nvme) {
  return IsLayerWise(format.optimizer) && UpdatesInPlace(format) && !states_on_nvme;
}

// Returns whether only updates use chunks of the kind: moments and masters.
constexpr bool IsOptimizerState(ChunkKind kind) {
  return kind != ChunkKind::kParam && kind != ChunkKind::kGrad;
}

}  // namespace gemini
