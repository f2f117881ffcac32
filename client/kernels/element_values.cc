// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/element_values.h"

#include <algorithm>
#include <cstring>

#include "client/kernels/moment_quantisation.h"
#include "gemini/half_float.h"
#include "gemini/split_float.h"
#include "gemini/system/check.h"

namespace gemini::client {
namespace {

// fp32 values from element `first` on, `count` or as many as the chunk has.
struct Run {
  float* values;
  int64_t count;
};

Run Fp32Run(absl::Span<std::byte* const> chunks, int64_t chunk_bytes, int64_t first,
            int64_t count) {
  const int64_t per_chunk = chunk_bytes / static_cast<int64_t>(sizeof(float));
  const int64_t index = first / per_chunk;
  GEMINI_CHECK(index < static_cast<int64_t>(chunks.size()));
  const int64_t offset = first - index * per_chunk;
  return {reinterpret_cast<float*>(chunks[index]) + offset, std::min(count, per_chunk - offset)};
}

// Calls `each` with the runs of fp32 values that elements [first, first + count) have in `chunks`.
template <typename Each>
void ForFp32Runs(absl::Span<std::byte* const> chunks, int64_t chunk_bytes, int64_t first,
                 int64_t count, Each each) {
  for (int64_t done = 0; done < count;) {
    const Run run = Fp32Run(chunks, chunk_bytes, first + done, count - done);
    each(done, run);
    done += run.count;
  }
}

bool IsFp32(const ValueChunks& at) {
  return IsMoment(at.value) || at.format.element == ElementType::kFp32;
}

// Where the codes and scales are of a moment's elements from `first` on.
struct QuantisedRun {
  MomentCode code;
  uint8_t* codes;
  float* scales;
};

QuantisedRun QuantisedRunOf(const ValueChunks& at, int64_t first) {
  GEMINI_CHECK(at.chunks.size() == 1 && first % kQuantisationBlockElements == 0);
  const QuantisedMomentsChunk place = QuantisedMomentsOf(at.format, at.chunk_bytes);
  std::byte* const chunk = at.chunks[0];
  return {at.value == ChunkKind::kExpAvg ? MomentCode::kSigned : MomentCode::kUnsigned,
          reinterpret_cast<uint8_t*>(chunk + place.codes_offset(at.value)) + first,
          reinterpret_cast<float*>(chunk + place.scales_offset(at.value)) +
              first / kQuantisationBlockElements};
}

absl::Span<uint16_t> HalfRun(const ValueChunks& at, int64_t first, size_t count) {
  return {reinterpret_cast<uint16_t*>(at.chunks[0]) + first, count};
}

}  // namespace

bool IsQuantised(const ValueChunks& at) {
  return IsMoment(at.value) && at.format.moments == MomentFormat::k8Bit;
}

void LoadValues(const ValueChunks& from, int64_t first, absl::Span<float> values) {
  const auto count = static_cast<int64_t>(values.size());
  const auto copy = [&](int64_t done, const Run& run) {
    std::memcpy(values.data() + done, run.values, static_cast<size_t>(run.count) * sizeof(float));
  };
  if (IsQuantised(from)) {
    const QuantisedRun run = QuantisedRunOf(from, first);
    return DequantiseMoment(run.code, run.codes, run.scales, count, values.data());
  }
  if (IsFp32(from)) return ForFp32Runs(from.chunks, from.chunk_bytes, first, count, copy);
  const absl::Span<const uint16_t> halves = HalfRun(from, first, values.size());
  if (from.format.element == ElementType::kFp16) {
    if (from.chunks.size() == 1) {
      std::ranges::transform(halves, values.begin(), FloatOfFp16);
      return;
    }
    return ForFp32Runs(absl::MakeSpan(from.chunks).subspan(1), from.chunk_bytes, first, count,
                       copy);
  }
  if (from.chunks.size() == 1) {
    std::ranges::transform(halves, values.begin(), FloatOfBf16);
    return;
  }
  const auto* const low = reinterpret_cast<const int16_t*>(from.chunks[1]) + first;
  for (size_t i = 0; i < values.size(); ++i) values[i] = JoinOf({halves[i], low[i]});
}

void StoreValues(const ValueChunks& to, int64_t first, absl::Span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  const auto copy = [&](int64_t done, const Run& run) {
    std::memcpy(run.values, values.data() + done, static_cast<size_t>(run.count) * sizeof(float));
  };
  if (IsQuantised(to)) {
    const QuantisedRun run = QuantisedRunOf(to, first);
    return QuantiseMoment(run.code, values.data(), /*first_element=*/0, count,
                          /*stochastic=*/nullptr, run.codes, run.scales);
  }
  if (IsFp32(to)) return ForFp32Runs(to.chunks, to.chunk_bytes, first, count, copy);
  const absl::Span<uint16_t> halves = HalfRun(to, first, values.size());
  if (to.format.element == ElementType::kFp16) {
    std::ranges::transform(values, halves.begin(), Fp16Of);
    if (to.chunks.size() > 1) {
      ForFp32Runs(absl::MakeSpan(to.chunks).subspan(1), to.chunk_bytes, first, count, copy);
    }
    return;
  }
  if (to.chunks.size() == 1) {
    std::ranges::transform(values, halves.begin(), Bf16Of);
    return;
  }
  auto* const low = reinterpret_cast<int16_t*>(to.chunks[1]) + first;
  for (size_t i = 0; i < values.size(); ++i) {
    const SplitFloat split = SplitOf(values[i]);
    halves[i] = split.high;
    low[i] = split.low;
  }
}

}  // namespace gemini::client
