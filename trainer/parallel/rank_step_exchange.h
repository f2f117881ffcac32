// SPDX-License-Identifier: Apache-2.0
// Lets the ranks that train a model by shards take the same steps (client/update/step_exchange.h).
// Bytes: one all-gather a step, of 8 bytes for each block of a rank's parts and a header; one more
//        of 16 bytes a block with LAMB and LARS.
// Order: squares are added unit by unit, of each the parts that ranks have of it by sharing layers
//        (rank_layout.h), one after the other, in each tensor by tensor and block by block. Where
//        they share none, that is how one process adds them that has the whole model in this order,
//        also if they are a pipeline. What several parts have alike counts once.
// With the norm comes a checksum of the collectives that each rank issued: ranks that issued others
// would exchange bytes that mean something else.
// Thread: the one that steps, which issues the rank's collectives.
// Errors: what a rank cannot do, no rank does; the message names the rank. INTERNAL: ranks issued
//         different collectives. Others: of the Communicator. Behind each but OUT_OF_RANGE the job
//         is over.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/update/step_exchange.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/parallel/shard_cut.h"

namespace gemini::trainer {

class RankStepExchange final : public client::StepExchange {
 public:
  // For each tensor of each unit, whether a part counts: all do, where it is empty.
  using CountsByTensor = std::vector<std::vector<std::vector<bool>>>;
  // `cuts` are of the model's units in order, for all ranks that have the same part of it; or for
  // one, where each of them has it whole and the same gradients: if there is one part, then no
  // squares are sent. Their blocks are whole norm blocks (client/kernels/grad_norm.h). `is_here`
  // says which units this rank has, and may be empty: it has all. The first tensors of its
  // ManagedModel are its pieces, unit by unit as ShardCut::PiecesOf returns them; other tensors
  // have no gradients. In a step a tensor has a gradient in all ranks that have pieces of it, or in
  // none. `communicator` outlives this.
  RankStepExchange(Communicator& communicator, const RankLayout& layout, std::vector<ShardCut> cuts,
                   CountsByTensor counts, const std::vector<bool>& is_here = {});
  // The same for ranks that share no layer.
  RankStepExchange(Communicator& communicator, std::vector<ShardCut> cuts)
      : RankStepExchange(communicator, RankLayout(communicator.num_ranks()), std::move(cuts), {}) {}

  absl::StatusOr<std::optional<double>> AgreeOnNorm(
      const absl::StatusOr<client::SquaresByTensor>& own) override;
  absl::Status CompleteTrustSquares(absl::Span<client::TrustSquares> squares) override;

  // Whether the last agreement was an error. The same in all ranks.
  bool refused() const { return refused_; }

 private:
  // What a rank has of a tensor.
  struct OwnPiece {
    int64_t unit = 0;
    int64_t tensor = 0;      // Its place in the unit.
    int64_t first_slot = 0;  // Of this rank's blocks.
    int64_t num_blocks = 0;
  };
  struct Header;
  class Parts;

  // Returns the slots of this rank's blocks, those of tensors without a gradient being 0.
  absl::StatusOr<std::vector<double>> SlotsOf(const client::SquaresByTensor& own) const;
  // Returns the norm that follows from what all ranks sent, or why there is no step.
  absl::StatusOr<std::optional<double>> NormFrom(Parts& parts, absl::Span<const double> own) const;
  bool Counts(int64_t unit, int64_t tensor, size_t part) const;
  // Sets the slots to 0 of what another part counts.
  void LeaveOutCopies(std::vector<double>& slots) const;
  // Returns the blocks of the whole tensor of a piece: those of all parts that count, one after the
  // other. `slots` has, rank by rank, two times each rank's slots, of which those from `first` on
  // are meant.
  std::vector<double> WholeTensor(const OwnPiece& piece, absl::Span<const double> slots,
                                  int64_t first) const;

  Communicator& communicator_;
  const RankLayout layout_;
  const std::vector<ShardCut> cuts_;
  const CountsByTensor counts_;
  size_t own_part_ = 0;
  bool sends_squares_ = true;
  std::vector<OwnPiece> pieces_;
  std::vector<int64_t> first_slots_;  // By unit: of its blocks among a rank's.
  int64_t num_slots_ = 0;             // Of a rank.
  bool refused_ = false;
};

}  // namespace gemini::trainer
