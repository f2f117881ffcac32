// SPDX-License-Identifier: Apache-2.0
#include "client/bundle_trust.h"

#include <algorithm>
#include <utility>

#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// What its pieces have in common.
TrustRun RunOf(const StateFormat& format, int64_t chunk_bytes) {
  const auto value = [&](ChunkKind kind) {
    return ValueChunks{.format = format, .value = kind, .chunk_bytes = chunk_bytes, .chunks = {}};
  };
  return {.settings = {},
          .param = value(ChunkKind::kParam),
          .grad = value(ChunkKind::kGrad),
          .exp_avg = value(ChunkKind::kExpAvg),
          .exp_avg_sq = value(ChunkKind::kExpAvgSq)};
}

void SetPiece(const TensorPiece& piece, const Intent& intent, TrustRun& run) {
  const int64_t width = ElementBytes(run.param.format.element);
  run.settings = SettingsOf(intent, piece.tensor);
  run.first = piece.chunk_offset_bytes / width;
  run.count = piece.size_bytes / width;
}

}  // namespace

absl::Status AppendBundleTrust(ChunkStore& store, BundleId bundle,
                               absl::Span<const TensorPiece> pieces, const Intent& intent,
                               absl::Span<TrustSquares> by_tensor, WorkerTeam& team) {
  const auto has_gradient = [&](const TensorPiece& piece) {
    return intent.tensors[piece.tensor].has_gradient;
  };
  if (std::ranges::none_of(pieces, has_gradient)) return absl::OkStatus();
  TrustRun run = RunOf(store.format(), store.chunk_bytes());
  std::vector<HostChunk> held;
  for (ValueChunks* const value : {&run.param, &run.exp_avg, &run.exp_avg_sq, &run.grad}) {
    for (const ChunkKind kind : KindsOfValue(store.format(), value->value)) {
      if (IsMoment(kind) && !store.HasPayload(ChunkOf(bundle, kind))) break;
      GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store.Acquire(ChunkOf(bundle, kind)));
      value->chunks.push_back(chunk.data());
      held.push_back(std::move(chunk));
    }
  }
  for (const TensorPiece& piece : pieces) {
    if (!has_gradient(piece)) continue;
    SetPiece(piece, intent, run);
    AppendRunSquares(run, team, by_tensor[piece.tensor]);
  }
  return absl::OkStatus();
}

std::vector<TrustRun> TrustRunsOf(const BundleInPlace& bundle, const StateFormat& format,
                                  int64_t chunk_bytes, absl::Span<const TensorPiece> pieces,
                                  const Intent& intent) {
  TrustRun run = RunOf(format, chunk_bytes);
  for (ValueChunks* const value : {&run.param, &run.exp_avg, &run.exp_avg_sq, &run.grad}) {
    for (const ChunkKind kind : KindsOfValue(format, value->value)) {
      value->chunks.push_back(bundle.chunks[kind]);
    }
  }
  std::vector<TrustRun> runs;
  for (const TensorPiece& piece : pieces) {
    if (!intent.tensors[piece.tensor].has_gradient) continue;
    SetPiece(piece, intent, run);
    runs.push_back(run);
  }
  return runs;
}

}  // namespace gemini::client
