// SPDX-License-Identifier: Apache-2.0
#include "client/update/gradient_squares.h"

#include <algorithm>
#include <utility>

#include "client/kernels/grad_norm.h"
#include "client/update/piece_blocks.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

bool HasAny(const std::vector<bool>& wanted) {
  return std::ranges::find(wanted, true) != wanted.end();
}

}  // namespace

GradientSquares::GradientSquares(ChunkStore& store,
                                 std::function<absl::Span<const TensorPiece>(BundleId)> pieces,
                                 WorkerTeam& team)
    : store_(store),
      pieces_(std::move(pieces)),
      team_(team),
      prepared_(store.num_bundles()),
      kept_(store.num_bundles()) {}

std::vector<std::vector<double>> PieceSquares(ElementType element,
                                              absl::Span<const TensorPiece> pieces,
                                              const std::vector<bool>& wanted,
                                              const std::byte* chunk, WorkerTeam& team) {
  const int64_t width = ElementBytes(element);
  std::vector<std::vector<double>> squares(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!wanted[i]) continue;
    squares[i].resize(static_cast<size_t>(NumNormBlocks(pieces[i].size_bytes / width)));
  }
  team.Run(ElementsToEnd(pieces, width), kUpdatePartElements, [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!wanted[i]) continue;
      const PieceBlocks blocks = BlocksBegunIn(begin, end, pieces[i], width);
      if (blocks.num_elements == 0) continue;
      BlockSquares(element, chunk + pieces[i].chunk_offset_bytes + blocks.first_element * width,
                   blocks.num_elements, &squares[i][blocks.first_block]);
    }
  });
  return squares;
}

int64_t GradientSquares::Expect(BundleId bundle, size_t piece) {
  const int64_t write_backs = store_.WriteCounts(ChunkOf(bundle, ChunkKind::kGrad)).from_device;
  const size_t num_pieces = pieces_(bundle).size();
  MutexLock lock(mutex_);
  std::vector<Kept>& kept = kept_[bundle.value()];
  kept.resize(num_pieces);
  kept[piece] = {.ticket = next_ticket_, .write_backs = write_backs};
  return next_ticket_++;
}

void GradientSquares::Keep(BundleId bundle, size_t piece, int64_t ticket,
                           std::vector<double> squares) {
  MutexLock lock(mutex_);
  std::vector<Kept>& kept = kept_[bundle.value()];
  if (piece >= kept.size() || kept[piece].ticket != ticket) return;
  kept[piece].squares = std::move(squares);
  kept[piece].is_there = true;
}

std::vector<bool> GradientSquares::NotKept(BundleId bundle, size_t num_pieces,
                                           const ChunkWrites& writes) const {
  const std::vector<Kept>& kept = kept_[bundle.value()];
  std::vector<bool> not_kept(num_pieces, true);
  for (size_t i = 0; i < kept.size(); ++i) {
    not_kept[i] = !kept[i].is_there || kept[i].write_backs != writes.from_device;
  }
  return not_kept;
}

void GradientSquares::Prepare(BundleId bundle) {
  const absl::Span<const TensorPiece> pieces = pieces_(bundle);
  const ChunkWrites counts = store_.WriteCounts(ChunkOf(bundle, ChunkKind::kGrad));
  std::vector<bool> wanted;
  {
    MutexLock lock(mutex_);
    wanted = NotKept(bundle, pieces.size(), counts);
  }
  if (!HasAny(wanted)) return;
  Prepared fresh;
  const std::optional<int64_t> writes = store_.PeekGradient(bundle, [&](const std::byte* chunk) {
    fresh.squares = PieceSquares(store_.format().element, pieces, wanted, chunk, team_);
  });
  if (!writes) return;
  fresh.writes = *writes;
  MutexLock lock(mutex_);
  prepared_[bundle.value()] = std::move(fresh);
}

absl::StatusOr<std::vector<std::vector<double>>> GradientSquares::Find(
    BundleId bundle, const std::vector<bool>& has_gradient) {
  const ChunkId grad = ChunkOf(bundle, ChunkKind::kGrad);
  const absl::Span<const TensorPiece> pieces = pieces_(bundle);
  const ChunkWrites counts = store_.WriteCounts(grad);
  std::vector<std::vector<double>> squares(pieces.size());
  std::vector<bool> wanted;
  {
    MutexLock lock(mutex_);
    wanted = NotKept(bundle, pieces.size(), counts);
    // What is given away is not there any more.
    std::vector<Kept> kept = std::exchange(kept_[bundle.value()], {});
    Prepared prepared = std::exchange(prepared_[bundle.value()], {});
    if (prepared.writes != counts.all) prepared.squares.clear();
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!has_gradient[pieces[i].tensor]) {
        wanted[i] = false;
      } else if (!wanted[i]) {
        squares[i] = std::move(kept[i].squares);
      } else if (!prepared.squares.empty() && !prepared.squares[i].empty()) {
        squares[i] = std::move(prepared.squares[i]);
        wanted[i] = false;
      }
    }
    if (!HasAny(wanted)) {
      ++num_found_ready_;
      return squares;
    }
  }
  GEMINI_ASSIGN_OR_RETURN(const HostChunk chunk, store_.Acquire(grad, /*foreseen=*/false));
  std::vector<std::vector<double>> computed =
      PieceSquares(store_.format().element, pieces, wanted, chunk.data(), team_);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (wanted[i]) squares[i] = std::move(computed[i]);
  }
  return squares;
}

int64_t GradientSquares::num_found_ready() const {
  MutexLock lock(mutex_);
  return num_found_ready_;
}

}  // namespace gemini::client
