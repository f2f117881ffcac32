// SPDX-License-Identifier: Apache-2.0
#include "client/bundle_trust.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "client/element_values.h"
#include "client/grad_norm.h"
#include "gemini/state_format.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// Whole blocks of norms and of 8-bit moments, except a tensor's last.
constexpr int64_t kBatchElements = 4 * kNormBlockElements;
static_assert(kBatchElements % kQuantisationBlockElements == 0);

// A value of the bundle's elements, held. No chunks: zeros, which moments are before their first update.
struct Held {
  ValueChunks at;
  std::vector<HostChunk> chunks;
};

absl::StatusOr<Held> Hold(ChunkStore& store, BundleId bundle, ChunkKind value) {
  Held held = {.at = {.format = store.format(), .value = value, .chunk_bytes = store.chunk_bytes()},
               .chunks = {}};
  for (const ChunkKind kind : KindsOfValue(store.format(), value)) {
    if (IsMoment(kind) && !store.HasPayload(ChunkOf(bundle, kind))) break;
    GEMINI_ASSIGN_OR_RETURN(HostChunk chunk, store.Acquire(ChunkOf(bundle, kind)));
    held.at.chunks.push_back(chunk.data());
    held.chunks.push_back(std::move(chunk));
  }
  return held;
}

}  // namespace

absl::Status AppendBundleTrust(ChunkStore& store, BundleId bundle,
                               absl::Span<const TensorPiece> pieces, const Intent& intent,
                               absl::Span<TrustSquares> by_tensor) {
  const auto has_gradient = [&](const TensorPiece& piece) {
    return intent.tensors[piece.tensor].has_gradient;
  };
  if (std::ranges::none_of(pieces, has_gradient)) return absl::OkStatus();
  GEMINI_ASSIGN_OR_RETURN(const Held param, Hold(store, bundle, ChunkKind::kParam));
  GEMINI_ASSIGN_OR_RETURN(const Held exp_avg, Hold(store, bundle, ChunkKind::kExpAvg));
  GEMINI_ASSIGN_OR_RETURN(const Held exp_avg_sq, Hold(store, bundle, ChunkKind::kExpAvgSq));
  GEMINI_ASSIGN_OR_RETURN(const Held grad, Hold(store, bundle, ChunkKind::kGrad));
  std::array<std::array<float, kBatchElements>, 4> buffers;
  const int64_t width = ElementBytes(store.format().element);
  for (const TensorPiece& piece : pieces) {
    if (!has_gradient(piece)) continue;
    const int64_t count = piece.size_bytes / width;
    for (int64_t done = 0; done < count; done += kBatchElements) {
      const int64_t size = std::min(kBatchElements, count - done);
      const auto load = [&](const Held& from, size_t buffer) -> const float* {
        if (from.chunks.empty()) return nullptr;
        LoadValues(from.at, piece.chunk_offset_bytes / width + done,
                   absl::MakeSpan(buffers[buffer].data(), static_cast<size_t>(size)));
        return buffers[buffer].data();
      };
      AppendTrustSquares(SettingsOf(intent, piece.tensor),
                         {.param = load(param, 0),
                          .grad = load(grad, 1),
                          .exp_avg = load(exp_avg, 2),
                          .exp_avg_sq = load(exp_avg_sq, 3)},
                         size, by_tensor[piece.tensor]);
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
