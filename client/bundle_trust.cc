// SPDX-License-Identifier: Apache-2.0
#include "client/bundle_trust.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "client/element_values.h"
#include "client/grad_norm.h"
#include "client/piece_blocks.h"
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

// What the squares of a bundle are computed from.
struct BundleValues {
  const Intent& intent;
  int64_t width;  // Bytes of an element.
  Held param = {}, exp_avg = {}, exp_avg_sq = {}, grad = {};
};

// Those of `count` elements of a piece from its element `from` on, whole blocks if not to its end.
void FindSquares(const BundleValues& values, const TensorPiece& piece, int64_t from, int64_t count,
                 double* param_sums, double* direction_sums) {
  std::array<std::array<float, kBatchElements>, 4> buffers;
  const UpdateSettings settings = SettingsOf(values.intent, piece.tensor);
  for (int64_t done = 0; done < count; done += kBatchElements) {
    const int64_t size = std::min(kBatchElements, count - done);
    const auto load = [&](const Held& held, size_t buffer) -> const float* {
      if (held.chunks.empty()) return nullptr;
      LoadValues(held.at, piece.chunk_offset_bytes / values.width + from + done,
                 absl::MakeSpan(buffers[buffer].data(), static_cast<size_t>(size)));
      return buffers[buffer].data();
    };
    const int64_t block = NumNormBlocks(done);
    FindTrustSquares(settings,
                     {.param = load(values.param, 0),
                      .grad = load(values.grad, 1),
                      .exp_avg = load(values.exp_avg, 2),
                      .exp_avg_sq = load(values.exp_avg_sq, 3)},
                     size, param_sums + block, direction_sums + block);
  }
}

}  // namespace

absl::Status AppendBundleTrust(ChunkStore& store, BundleId bundle,
                               absl::Span<const TensorPiece> pieces, const Intent& intent,
                               absl::Span<TrustSquares> by_tensor, WorkerTeam& team) {
  const auto has_gradient = [&](const TensorPiece& piece) {
    return intent.tensors[piece.tensor].has_gradient;
  };
  if (std::ranges::none_of(pieces, has_gradient)) return absl::OkStatus();
  BundleValues values = {.intent = intent, .width = ElementBytes(store.format().element)};
  GEMINI_ASSIGN_OR_RETURN(values.param, Hold(store, bundle, ChunkKind::kParam));
  GEMINI_ASSIGN_OR_RETURN(values.exp_avg, Hold(store, bundle, ChunkKind::kExpAvg));
  GEMINI_ASSIGN_OR_RETURN(values.exp_avg_sq, Hold(store, bundle, ChunkKind::kExpAvgSq));
  GEMINI_ASSIGN_OR_RETURN(values.grad, Hold(store, bundle, ChunkKind::kGrad));
  // Of each piece, the place of its first block among those of its tensor.
  std::vector<size_t> first_blocks;
  for (const TensorPiece& piece : pieces) {
    TrustSquares& squares = by_tensor[piece.tensor];
    first_blocks.push_back(squares.param.size());
    if (!has_gradient(piece)) continue;
    const size_t num_blocks =
        first_blocks.back() + static_cast<size_t>(NumNormBlocks(piece.size_bytes / values.width));
    squares.param.resize(num_blocks);
    squares.direction.resize(num_blocks);
  }
  team.Run(ElementsToEnd(pieces, values.width), kUpdatePartElements,
           [&](int64_t begin, int64_t end) {
             for (size_t i = 0; i < pieces.size(); ++i) {
               if (!has_gradient(pieces[i])) continue;
               const PieceBlocks blocks = BlocksBegunIn(begin, end, pieces[i], values.width);
               if (blocks.num_elements == 0) continue;
               TrustSquares& squares = by_tensor[pieces[i].tensor];
               const size_t at = first_blocks[i] + static_cast<size_t>(blocks.first_block);
               FindSquares(values, pieces[i], blocks.first_element, blocks.num_elements,
                           &squares.param[at], &squares.direction[at]);
             }
           });
  return absl::OkStatus();
}

}  // namespace gemini::client
