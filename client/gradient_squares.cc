// SPDX-License-Identifier: Apache-2.0
#include "client/gradient_squares.h"

#include <utility>

#include "client/grad_norm.h"
#include "client/piece_blocks.h"
#include "gemini/status_macros.h"

namespace gemini::client {

GradientSquares::GradientSquares(ChunkStore& store,
                                 std::function<absl::Span<const TensorPiece>(BundleId)> pieces,
                                 WorkerTeam& team)
    : store_(store), pieces_(std::move(pieces)), team_(team), kept_(store.num_bundles()) {}

std::vector<std::vector<double>> PieceSquares(ElementType element,
                                              absl::Span<const TensorPiece> pieces,
                                              const std::byte* chunk, WorkerTeam& team) {
  const int64_t width = ElementBytes(element);
  std::vector<std::vector<double>> squares(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    squares[i].resize(static_cast<size_t>(NumNormBlocks(pieces[i].size_bytes / width)));
  }
  team.Run(ElementsToEnd(pieces, width), kUpdatePartElements, [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const PieceBlocks blocks = BlocksBegunIn(begin, end, pieces[i], width);
      if (blocks.num_elements == 0) continue;
      BlockSquares(element, chunk + pieces[i].chunk_offset_bytes + blocks.first_element * width,
                   blocks.num_elements, &squares[i][blocks.first_block]);
    }
  });
  return squares;
}

void GradientSquares::Prepare(BundleId bundle) {
  Kept fresh;
  const std::optional<int64_t> writes = store_.PeekGradient(bundle, [&](const std::byte* chunk) {
    fresh.squares = PieceSquares(store_.format().element, pieces_(bundle), chunk, team_);
  });
  if (!writes) return;
  fresh.writes = *writes;
  MutexLock lock(mutex_);
  kept_[bundle.value()] = std::move(fresh);
}

absl::StatusOr<std::vector<std::vector<double>>> GradientSquares::Find(BundleId bundle) {
  const ChunkId grad = ChunkOf(bundle, ChunkKind::kGrad);
  {
    MutexLock lock(mutex_);
    Kept& kept = kept_[bundle.value()];
    if (kept.writes == store_.WriteCount(grad)) {
      ++num_prepared_used_;
      kept.writes = -1;  // Given away.
      return std::move(kept.squares);
    }
    kept = {};
  }
  GEMINI_ASSIGN_OR_RETURN(const HostChunk chunk, store_.Acquire(grad, /*foreseen=*/false));
  return PieceSquares(store_.format().element, pieces_(bundle), chunk.data(), team_);
}

int64_t GradientSquares::num_prepared_used() const {
  MutexLock lock(mutex_);
  return num_prepared_used_;
}

}  // namespace gemini::client
