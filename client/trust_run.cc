// SPDX-License-Identifier: Apache-2.0
#include "client/trust_run.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/types/span.h"
#include "client/grad_norm.h"
#include "gemini/element_type.h"
#include "gemini/moment_format.h"

namespace gemini::client {
namespace {

// Whole blocks of norms and of 8-bit moments, except a tensor's last.
constexpr int64_t kBatchElements = 4 * kNormBlockElements;
static_assert(kBatchElements % kQuantisationBlockElements == 0);
static_assert(kUpdatePartElements % kBatchElements == 0);

// Of elements [begin, end) of the run.
void FindSquares(const TrustRun& run, int64_t begin, int64_t end, double* param_sums,
                 double* direction_sums) {
  std::array<std::array<float, kBatchElements>, 4> buffers;
  for (int64_t at = begin; at < end; at += kBatchElements) {
    const int64_t size = std::min(kBatchElements, end - at);
    const auto load = [&](const ValueChunks& values, size_t buffer) -> const float* {
      if (values.chunks.empty()) return nullptr;
      LoadValues(values, run.first + at,
                 absl::MakeSpan(buffers[buffer].data(), static_cast<size_t>(size)));
      return buffers[buffer].data();
    };
    FindTrustSquares(run.settings,
                     {.param = load(run.param, 0),
                      .grad = load(run.grad, 1),
                      .exp_avg = load(run.exp_avg, 2),
                      .exp_avg_sq = load(run.exp_avg_sq, 3)},
                     size, param_sums + NumNormBlocks(at), direction_sums + NumNormBlocks(at));
  }
}

// From element `first` of the bundle on, the fp32 states in their chunk `index`.
UpdateStreams StreamsFrom(const TrustRun& run, int64_t first, int64_t in_first_chunk, int index) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  const ElementType type = run.param.format.element;
  const int64_t offset = (first - index * in_first_chunk) * kFloatBytes;
  const auto moment = [&](const ValueChunks& values) {
    return values.chunks.empty() ? nullptr
                                 : reinterpret_cast<const float*>(values.chunks[index] + offset);
  };
  UpdateStreams streams = {.param_type = type,
                           .grad_type = type,
                           .param = run.param.chunks[0] + first * ElementBytes(type),
                           .grad = run.grad.chunks[0] + first * ElementBytes(type),
                           .exp_avg = moment(run.exp_avg),
                           .exp_avg_sq = moment(run.exp_avg_sq)};
  if (type == ElementType::kBf16) streams.master = run.param.chunks[1] + first * MasterBytes(type);
  if (type == ElementType::kFp16) streams.master = run.param.chunks[1 + index] + offset;
  return streams;
}

}  // namespace

TrustStreams TrustStreamsOf(const TrustRun& run) {
  // Of the bundle's elements, as many as an fp32 state has in its first chunk.
  const int64_t in_first_chunk = run.param.chunk_bytes / static_cast<int64_t>(sizeof(float));
  TrustStreams streams;
  streams.split = std::clamp<int64_t>(in_first_chunk - run.first, 0, run.count);
  if (streams.split > 0) streams.lower = StreamsFrom(run, run.first, in_first_chunk, 0);
  if (streams.split < run.count) {
    streams.upper = StreamsFrom(run, run.first + streams.split, in_first_chunk, 1);
  }
  return streams;
}

void AppendRunSquares(const TrustRun& run, WorkerTeam& team, TrustSquares& squares) {
  const size_t before = squares.param.size();
  const size_t after = before + static_cast<size_t>(NumNormBlocks(run.count));
  squares.param.resize(after);
  squares.direction.resize(after);
  team.Run(run.count, kUpdatePartElements, [&](int64_t begin, int64_t end) {
    FindSquares(run, begin, end, squares.param.data() + before, squares.direction.data() + before);
  });
}

}  // namespace gemini::client
