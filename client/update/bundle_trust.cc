// SPDX-License-Identifier: Apache-2.0
#include "client/update/bundle_trust.h"

#include <algorithm>
#include <utility>

#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// Returns a run without chunks.
TrustRun ValuesOf(const StateFormat& format, int64_t chunk_bytes) {
  const auto value = [&](ChunkKind kind) {
    return ValueChunks{.format = format, .value = kind, .chunk_bytes = chunk_bytes, .chunks = {}};
  };
  return {.tensor = 0,
          .settings = {},
          .param = value(ChunkKind::kParam),
          .grad = value(ChunkKind::kGrad),
          .exp_avg = value(ChunkKind::kExpAvg),
          .exp_avg_sq = value(ChunkKind::kExpAvgSq)};
}

// One like `values` for each piece whose tensor has a gradient.
std::vector<TrustRun> RunsOf(const TrustRun& values, absl::Span<const TensorPiece> pieces,
                             const Intent& intent) {
  const int64_t width = ElementBytes(values.param.format.element);
  std::vector<TrustRun> runs;
  for (const TensorPiece& piece : pieces) {
    if (!intent.tensors[piece.tensor].has_gradient) continue;
    TrustRun& run = runs.emplace_back(values);
    run.tensor = piece.tensor;
    run.settings = SettingsOf(intent, piece.tensor);
    run.first = piece.chunk_offset_bytes / width;
    run.count = piece.size_bytes / width;
  }
  return runs;
}

}  // namespace

absl::Status AppendBundleTrust(ChunkStore& store, BundleId bundle,
                               absl::Span<const TensorPiece> pieces, const Intent& intent,
                               absl::Span<TrustSquares> by_tensor, WorkerTeam& team) {
  const auto has_gradient = [&](const TensorPiece& piece) {
    return intent.tensors[piece.tensor].has_gradient;
  };
  if (std::ranges::none_of(pieces, has_gradient)) return absl::OkStatus();
  TrustRun values = ValuesOf(store.format(), store.chunk_bytes());
  std::vector<HostChunk> held;
  for (ValueChunks* const value :
       {&values.param, &values.exp_avg, &values.exp_avg_sq, &values.grad}) {
    for (const ChunkKind kind : KindsOfValue(store.format(), value->value)) {
      if (IsMoment(kind) && !store.HasPayload(ChunkOf(bundle, kind))) break;
      GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store.Acquire(ChunkOf(bundle, kind)));
      value->chunks.push_back(chunk.data());
      held.push_back(std::move(chunk));
    }
  }
  const std::vector<TrustRun> runs = RunsOf(values, pieces, intent);
  TrustSquares squares;
  AppendRunSquares(runs, team, squares);
  GiveToTensors(runs, squares, by_tensor);
  return absl::OkStatus();
}

std::vector<TrustRun> TrustRunsOf(const BundleInPlace& bundle, const StateFormat& format,
                                  int64_t chunk_bytes, absl::Span<const TensorPiece> pieces,
                                  const Intent& intent) {
  TrustRun values = ValuesOf(format, chunk_bytes);
  for (ValueChunks* const value :
       {&values.param, &values.exp_avg, &values.exp_avg_sq, &values.grad}) {
    for (const ChunkKind kind : KindsOfValue(format, value->value)) {
      value->chunks.push_back(bundle.chunks[kind]);
    }
  }
  return RunsOf(values, pieces, intent);
}

}  // namespace gemini::client
