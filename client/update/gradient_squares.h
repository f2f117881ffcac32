// SPDX-License-Identifier: Apache-2.0
// Keeps the sums of squares of gradients that leave DEVICE, for the gradient norm
// (client/kernels/grad_norm.h). They are computed on DEVICE before the gradients leave, or in HOST
// as they arrive, so that a step only adds them up.
// Thread: any; one lock, not held while it computes. A team of threads computes.
// Rule: what was computed in HOST counts as long as the gradient chunk was not acquired for writing
// since. What was summed on DEVICE counts until the same gradient is expected again, or the chunk
// is written back from DEVICE, where operators may have changed it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/host/chunk_store.h"
#include "client/update/bundle_update.h"
#include "gemini/element_type.h"
#include "gemini/ids.h"
#include "gemini/system/mutex.h"
#include "gemini/system/worker_team.h"

namespace gemini::client {

// Returns the block squares of each piece that is `wanted`, and none of the others, from the bytes
// of a chunk of gradients of type `element`. `pieces` are in chunk order. The bits do not depend on
// the number of threads.
std::vector<std::vector<double>> PieceSquares(ElementType element,
                                              absl::Span<const TensorPiece> pieces,
                                              const std::vector<bool>& wanted,
                                              const std::byte* chunk, WorkerTeam& team);

class GradientSquares {
 public:
  // `pieces` returns the pieces of a bundle, always the same. Store and team outlive this.
  GradientSquares(ChunkStore& store, std::function<absl::Span<const TensorPiece>(BundleId)> pieces,
                  WorkerTeam& team);
  GradientSquares(const GradientSquares&) = delete;
  GradientSquares& operator=(const GradientSquares&) = delete;

  // Announces that a gradient is about to be written to its piece's part of the chunk, and discards
  // earlier squares of the piece. Returns a ticket for Keep.
  int64_t Expect(BundleId bundle, size_t piece);
  // Keeps its block squares, summed before it left DEVICE. Does nothing if another was expected
  // since.
  void Keep(BundleId bundle, size_t piece, int64_t ticket, std::vector<double> squares);
  // Computes the squares, except those kept, of a bundle whose gradients are complete, if that
  // needs no wait: the chunk is in HOST and not held.
  void Prepare(BundleId bundle);

  // Returns the block squares of each piece of the bundle whose tensor has a gradient, and none of
  // the others. They were kept or prepared, or are computed now. Gradients are complete and not
  // being written. Errors: of ChunkStore::Acquire.
  absl::StatusOr<std::vector<std::vector<double>>> Find(BundleId bundle,
                                                        const std::vector<bool>& has_gradient);

  int64_t num_found_ready() const;  // Calls of Find that computed nothing, ever.

 private:
  struct Prepared {
    int64_t writes = -1;                            // ChunkWrites::all when they were computed.
    std::vector<std::vector<double>> squares = {};  // By piece; empty for those that were kept.
  };
  struct Kept {
    int64_t ticket = -1;
    int64_t write_backs = 0;  // ChunkWrites::from_device before the gradient was written.
    bool is_there = false;
    std::vector<double> squares = {};
  };

  // Returns, by piece, whether it was not kept, or has changed on DEVICE since; `writes` are the
  // present counts.
  std::vector<bool> NotKept(BundleId bundle, size_t num_pieces, const ChunkWrites& writes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ChunkStore& store_;
  const std::function<absl::Span<const TensorPiece>(BundleId)> pieces_;
  WorkerTeam& team_;
  mutable Mutex mutex_;
  std::vector<Prepared> prepared_ ABSL_GUARDED_BY(mutex_);       // By BundleId.
  std::vector<std::vector<Kept>> kept_ ABSL_GUARDED_BY(mutex_);  // By BundleId and piece.
  int64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_found_ready_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemini::client
