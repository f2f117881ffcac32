// SPDX-License-Identifier: Apache-2.0
// Presents what all ranks have of the parameters (gathered_model.h) as whole tensors under the
// names that files have for them, so that a checkpoint does not depend on how many ranks wrote it.
// Replicas, which each rank has for itself, are saved by the first rank that has them.
// Read:    the first rank alone reads, in work that it runs by OnFirstRank. It asks the ranks that
//          have pieces, which serve it meanwhile, and puts a window of the tensor together.
// Write:   each rank calls it for each tensor, with a source of its own, and takes what it has of
//          it. No rank waits for another.
// Update:  all ranks take the same step (rank_step_exchange.h).
// Owner:   one thread, which issues the rank's collectives.
// Errors:  of the ranks' stores, with the rank's number; of the Communicator.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/parameter_boxes.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/parallel/rank_step_exchange.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

// Returns the exchange of a rank's steps. The communicator outlives it.
RankStepExchange StepExchangeOf(const GatheredModel& model, Communicator& communicator,
                                const RankLayout& layout);

class RanksParameterStore final : public ParameterStore {
 public:
  // `own` has this rank's pieces, under the model's names. `layout` is that of all ranks, by which
  // the model was made. Model and communicator outlive this.
  RanksParameterStore(std::unique_ptr<ParameterStore> own, GatheredModel& model,
                      Communicator& communicator, const RankLayout& layout);

  absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) override;
  OptimizerKind optimizer() const override { return own_->optimizer(); }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, Source source) override;
  // Asks a rank that has a piece, if this one, the first, has none.
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override { return own_->SetStep(step); }
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  absl::Status OnFirstRank(absl::FunctionRef<absl::Status()> work) override;
  void BeginPhase(absl::string_view name) override { own_->BeginPhase(name); }
  void EndPhase() override { own_->EndPhase(); }
  absl::Status status() const override { return own_->status(); }
  bool GiveWay() override { return own_->GiveWay(); }
  void ForgetGradients() override { own_->ForgetGradients(); }
  client::TrainingStats usage() const override { return own_->usage(); }
  void ResetPeaks() override { own_->ResetPeaks(); }

 private:
  // A shard of what one rank of a grid has of a tensor, in that rank's store.
  struct Piece {
    int64_t rank = 0;
    std::string name;   // There.
    int64_t place = 0;  // In the grid.
    // It is the one that is read, of what ranks at other places have of the tensor as well.
    bool is_first = false;
    int64_t first = 0;  // Element of the rank's tensor.
    int64_t count = 0;
    int64_t end() const { return first + count; }
  };
  struct Tensor {
    const ParameterBoxes* boxes = nullptr;
    std::vector<Piece> pieces;
    int64_t num_elements = 0;
  };
  struct Request;
  struct Reply;

  // Returns the tensor's place in tensors_. NOT_FOUND: no such tensor.
  absl::StatusOr<size_t> Find(absl::string_view name) const;
  // Sends a request to a rank, and returns the number that it answers.
  absl::StatusOr<int64_t> Ask(int64_t rank, const Request& request) const;
  // Reads elements of a piece, `begin` to `end` of its rank's tensor, into `values`.
  absl::Status ReadPiece(size_t tensor, size_t piece, ChunkKind kind, int64_t begin, int64_t end,
                         std::vector<float>& values);
  // Puts elements `begin` to `end` of the tensor together.
  absl::Status ReadWindow(size_t tensor, ChunkKind kind, int64_t begin, int64_t end,
                          std::vector<float>& window);
  // Answers the first rank until it ends that, and returns how its work went.
  absl::Status Serve();
  // Does what is asked of this rank. `bytes` is what it read.
  absl::StatusOr<int64_t> Answer(const Request& request, std::vector<std::byte>& bytes);

  const std::unique_ptr<ParameterStore> own_;
  GatheredModel& model_;
  Communicator& communicator_;
  RankStepExchange exchange_;
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string, size_t> places_;
};

}  // namespace gemini::trainer
