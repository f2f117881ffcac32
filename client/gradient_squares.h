// SPDX-License-Identifier: Apache-2.0
// The sums of squares that the gradient norm is made of (client/grad_norm.h), computed as gradients
// arrive, so that a step only adds them up.
// Thread: any; one lock, not held while it computes. A team of threads computes.
// Rule:   what was computed counts as long as the gradient chunk was not acquired for writing since.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/bundle_update.h"
#include "client/chunk_store.h"
#include "gemini/element_type.h"
#include "gemini/ids.h"
#include "gemini/mutex.h"
#include "gemini/worker_team.h"

namespace gemini::client {

// The block squares of each piece in the bytes of a chunk of gradients of type `element`; `pieces` are in chunk
// order. The same bits whatever the number of threads.
std::vector<std::vector<double>> PieceSquares(ElementType element,
                                              absl::Span<const TensorPiece> pieces,
                                              const std::byte* chunk, WorkerTeam& team);

class GradientSquares {
 public:
  // `pieces` gives the pieces of a bundle, always the same. Store and team outlive this.
  GradientSquares(ChunkStore& store, std::function<absl::Span<const TensorPiece>(BundleId)> pieces,
                  WorkerTeam& team);
  GradientSquares(const GradientSquares&) = delete;
  GradientSquares& operator=(const GradientSquares&) = delete;

  // Computes those of a bundle whose gradients are complete, if they can be had without waiting: the
  // chunk is in HOST and nobody holds it.
  void Prepare(BundleId bundle);

  // The block squares of each piece of the bundle, from what was prepared or computed now. The
  // gradient is complete and nobody writes it. Errors: of ChunkStore::Acquire.
  absl::StatusOr<std::vector<std::vector<double>>> Find(BundleId bundle);

  int64_t num_prepared_used() const;  // Calls of Find that computed nothing, ever.

 private:
  struct Kept {
    int64_t writes = -1;                       // ChunkStore::WriteCount when they were computed.
    std::vector<std::vector<double>> squares;  // By piece.
  };

  ChunkStore& store_;
  const std::function<absl::Span<const TensorPiece>(BundleId)> pieces_;
  WorkerTeam& team_;
  mutable Mutex mutex_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // By BundleId.
  int64_t num_prepared_used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemini::client
