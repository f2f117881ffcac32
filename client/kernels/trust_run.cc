// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/trust_run.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "gemini/element_type.h"
#include "gemini/moment_format.h"

namespace gemini::client {
namespace {

// Whole blocks of norms and of 8-bit moments, except a tensor's last.
constexpr int64_t kBatchElements = 4 * kNormBlockElements;
static_assert(kBatchElements % kQuantisationBlockElements == 0);
static_assert(kUpdatePartElements % kBatchElements == 0);

// Sums the squares of elements [begin, end) of the run.
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
  // How many of the bundle's elements an fp32 state has in its first chunk.
  const int64_t in_first_chunk = run.param.chunk_bytes / static_cast<int64_t>(sizeof(float));
  TrustStreams streams;
  streams.split = std::clamp<int64_t>(in_first_chunk - run.first, 0, run.count);
  if (streams.split > 0) streams.lower = StreamsFrom(run, run.first, in_first_chunk, 0);
  if (streams.split < run.count) {
    streams.upper = StreamsFrom(run, run.first + streams.split, in_first_chunk, 1);
  }
  return streams;
}

void AppendRunSquares(absl::Span<const TrustRun> runs, WorkerTeam& team, TrustSquares& squares) {
  // All are one piece of work, for many are small. Each begins with a batch.
  struct Place {
    int64_t begin = 0;  // In the work.
    size_t first_block = 0;
  };
  std::vector<Place> places;
  int64_t work = 0;
  size_t num_blocks = squares.param.size();
  for (const TrustRun& run : runs) {
    places.push_back({.begin = work, .first_block = num_blocks});
    work += (run.count + kBatchElements - 1) / kBatchElements * kBatchElements;
    num_blocks += static_cast<size_t>(NumNormBlocks(run.count));
  }
  squares.param.resize(num_blocks);
  squares.direction.resize(num_blocks);
  team.Run(work, kUpdatePartElements, [&](int64_t part_begin, int64_t part_end) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const int64_t begin = std::max<int64_t>(0, part_begin - places[i].begin);
      const int64_t end = std::min(runs[i].count, part_end - places[i].begin);
      if (begin >= end) continue;
      FindSquares(runs[i], begin, end, squares.param.data() + places[i].first_block,
                  squares.direction.data() + places[i].first_block);
    }
  });
}

void GiveToTensors(absl::Span<const TrustRun> runs, const TrustSquares& squares,
                   absl::Span<TrustSquares> by_tensor) {
  int64_t begin = 0;
  for (const TrustRun& run : runs) {
    const int64_t end = begin + NumNormBlocks(run.count);
    const auto append = [&](const std::vector<double>& from, std::vector<double>& to) {
      to.insert(to.end(), from.begin() + begin, from.begin() + end);
    };
    append(squares.param, by_tensor[run.tensor].param);
    append(squares.direction, by_tensor[run.tensor].direction);
    begin = end;
  }
}

}  // namespace gemini::client
