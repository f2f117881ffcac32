// SPDX-License-Identifier: Apache-2.0
// How the state of a space's trainable elements is kept, and in which chunks of their bundle. Each
// has an fp32 value whatever the format: a 16-bit parameter has a master that gives it.
//   fp32: param (fp32), exp_avg, exp_avg_sq, grad: 4 chunks, 16 bytes an element.
//   bf16: param (high half of the fp32 value), master (low half: gemini/split_float.h), the fp32
//         moments in two chunks each, grad (bf16): 7 chunks of 2 bytes an element: 14.
//   fp16: param (master rounded to nearest even), master (fp32, two chunks), moments as bf16, grad
//   (fp16): 16.
// An optimizer without a second moment has no exp_avg_sq: 4 bytes an element less.
// 8-bit moments, all of a bundle, are in its exp_avg chunk alone (gemini/moment_format.h): 12, 8
// and 10 bytes.
// Units:  element i of a bundle lies at byte i * ElementBytes(element) of its param and grad
//         chunks, up to the payload's end. Of a state in two chunks, the first has as many elements
//         as fill it.
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
  ElementType element = ElementType::kFp32;  // Of parameters and gradients.
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

// The chunks that together hold the values of kParam, kExpAvg or kExpAvgSq, or gradients; none of a
// moment that the optimizer does not have. 8-bit moments share one.
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

// All that an update changes: the chunks of the parameter, then those of the moments.
constexpr KindList UpdatedKinds(const StateFormat& format) {
  KindList kinds;
  for (const ChunkKind value : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    if (value == ChunkKind::kExpAvgSq && format.moments == MomentFormat::k8Bit) continue;
    for (const ChunkKind kind : KindsOfValue(format, value)) kinds.Add(kind);
  }
  return kinds;
}

// The chunks of a trainable bundle: those, and the gradient's.
constexpr KindList TrainableKinds(const StateFormat& format) {
  KindList kinds = UpdatedKinds(format);
  kinds.Add(ChunkKind::kGrad);
  return kinds;
}

// Those of them that only updates use: masters and moments.
constexpr int64_t NumStateChunks(const StateFormat& format) {
  return UpdatedKinds(format).size() - 1;
}

constexpr int64_t NumMoments(const StateFormat& format) {
  return HasSecondMoment(format.optimizer) ? 2 : 1;
}

// What tensors may fill of each param chunk of a space, from its beginning: all, unless the 8-bit
// moments of so many elements would not fit a chunk with their scales. Whole pages. 0: chunks of
// this size, which must be a multiple of 4 * kQuantisationBlockElements bytes then, hold no block.
constexpr int64_t PayloadBytes(const StateFormat& format, int64_t chunk_bytes) {
  if (format.moments == MomentFormat::kFp32) return chunk_bytes;
  if (chunk_bytes % (4 * kQuantisationBlockElements) != 0) return 0;
  const QuantisedMomentsChunk block = {.elements = kQuantisationBlockElements,
                                       .num_moments = NumMoments(format)};
  const int64_t block_bytes = kQuantisationBlockElements * ElementBytes(format.element);
  return std::min(chunk_bytes / block_bytes, chunk_bytes / block.size_bytes()) * block_bytes;
}

// Where the 8-bit moments of a bundle lie in their chunk.
constexpr QuantisedMomentsChunk QuantisedMomentsOf(const StateFormat& format, int64_t chunk_bytes) {
  return {.elements = PayloadBytes(format, chunk_bytes) / ElementBytes(format.element),
          .num_moments = NumMoments(format)};
}

// Whether an update may run where the chunks are, on DEVICE: not of 8-bit moments.
constexpr bool UpdatesInPlace(const StateFormat& format) {
  return format.moments == MomentFormat::kFp32;
}

// Whether a bundle that is updated in HOST may have its gradient on DEVICE until then: not where
// its trust ratio is made of gradient and parameter before the intent.
constexpr bool TakesLateGradients(const StateFormat& format) {
  return UpdatesInPlace(format) && !IsLayerWise(format.optimizer);
}

// Whether plans time what trust ratios take, since it depends on them where: then it is left out of
// the time that the update's operator was measured to compute.
constexpr bool TimesTrustRatios(const StateFormat& format, bool states_on_nvme) {
  return IsLayerWise(format.optimizer) && UpdatesInPlace(format) && !states_on_nvme;
}

// Whether only updates use the chunks of the kind: moments, and masters.
constexpr bool IsOptimizerState(ChunkKind kind) {
  return kind != ChunkKind::kParam && kind != ChunkKind::kGrad;
}

}  // namespace gemini
