// SPDX-License-Identifier: Apache-2.0
// Trains a model by ZeRO. At stage 3 each rank has shards of it, and gathers it unit by unit while
// it computes. At stages 1 and 2 it has whole tensors beside its shards, at stage 0 the whole model
// alone. Gradients are added up over the ranks at each of them.
// Units are the embeddings, each block, and what is behind the blocks. In a pipeline each rank has
// those of its stages alone (model_stages.h), of a tied table the first and the last one.
// Parts:  where ranks share layers (tensor_layers.h), each has some boxes of the tensors, and all
//         that is said of the model here is said of these: ranks with the same boxes are the group
//         among which they are cut into shards.
// Names:  its parameters are this rank's pieces, in the order of the units: as PieceName; behind
//         all of them "whole.NAME", frozen, of what it has whole beside them, and "sum.NAME" and
//         "copy.NAME" of gradients that are added up there.
// Bits:   loss and gradients are those of the whole model on one rank, and each gradient is the sum
//         over the ranks, of each micro-batch, or of the sum of a step's. It is folded by rank
//         where the communicator's sums are folds (communicator.h).
// Sums:   a tied table has one of each micro-batch; in the vertical schedule and in a pipeline,
//         whose backwards of head and look-up are apart, one of either. Where ranks add once a
//         step, it has one, and in a pipeline either end has one.
// Device: parameters are made on the CPU, and units are gathered on UnitOptions::device.
// Limits: tables of the vocabulary are not cut. Micro-batches run one after the
//         other, or as BeginMicroBatches says: a forward ends those before it, whose backward
//         throws if it is run afterwards.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gemini/moment_format.h"
#include "torch/types.h"
#include "trainer/families/model_spec.h"
#include "trainer/layer_set.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_unit.h"
#include "trainer/parallel/model_stages.h"
#include "trainer/parallel/parameter_boxes.h"
#include "trainer/parallel/tensor_layers.h"

namespace gemini::trainer {

// Returns the elements that a shard's pieces are cut at for moments of this format: whole blocks of
// the norm, and of what quantises 8-bit moments together.
int64_t ShardBlockElements(MomentFormat moments);

// Where a rank lies in a pipeline.
struct PipelinePlace {
  ModelStages stages;
  int64_t rank = 0;  // Of the pipeline.
  // The first and the last rank. It outlives the model.
  const RankGroup* ends = nullptr;
};

class GatheredModel final : public StagedModel {
 public:
  // All ranks of the group make the same one. `type` is that of the parameters, which have no
  // values yet. Communicator and group outlive this. Errors: as MakeStagedModel.
  static absl::StatusOr<std::unique_ptr<GatheredModel>> Make(const ModelSpec& spec,
                                                             torch::ScalarType type,
                                                             Communicator& communicator,
                                                             const RankGroup& group,
                                                             const UnitOptions& options) {
    return Make(spec, type, communicator, group, options, /*layers=*/nullptr);
  }
  // The same of layers that are shared, on the meta device, or of whole ones if `layers` is null;
  // and of stages in a pipeline. Embed is then for its first rank, and Head and LossOf are for its
  // last one.
  static absl::StatusOr<std::unique_ptr<GatheredModel>> Make(
      const ModelSpec& spec, torch::ScalarType type, Communicator& communicator,
      const RankGroup& group, const UnitOptions& options, TensorLayers* layers,
      const std::optional<PipelinePlace>& place = {});

  Stream Embed(const Batch& batch) override;
  BatchContext ContextOf(const torch::Tensor& hidden) const override;
  torch::Tensor Head(const Stream& last, const BatchContext& context) override;
  BatchLoss LossOf(Stream last, const BatchContext& context, const Labels& labels,
                   const LossFactors& factors) override;
  void train(bool on = true) override;
  void set_last_micro_batch(bool is_last) override;
  void BeginMicroBatches(int64_t count) override;
  void BeginEvaluation() override;
  void EndEvaluation() override { NoteUpdate(); }
  void Forget() override;
  void HoldStage(size_t stage) override;
  void ReleaseStage(size_t stage) override;

  // Sets whether the next unit is gathered while one computes: DEVICE has two then. Off at first.
  // The same in all ranks.
  void set_gather_ahead(bool ahead) { gather_ahead_ = ahead; }
  // The pieces have new values, or are to be gathered as if. All ranks call it between the same
  // steps.
  void NoteUpdate();

  // Adds the gradients of a tied table over the ends of the pipeline, behind the last backward of a
  // step.
  void AddOverCopies() { units_.front()->AddOverCopies(); }

  const ModelSpec& spec() const { return spec_; }
  // Which elements of [batch, sequence, width] are in the hidden states between blocks.
  const HiddenPart& hidden_part() const { return hidden_part_; }
  const PipelinePlace& place() const { return place_; }
  // All units of the model, in the order of their use. Those that this rank lacks have no pieces.
  const std::vector<std::unique_ptr<GatheredUnit>>& units() const { return units_; }
  // Returns whether a rank of the pipeline has a unit.
  bool HasUnit(int64_t pipeline_rank, size_t unit) const;
  // Returns the first rank of the pipeline that has it.
  int64_t FirstRankWith(size_t unit) const;
  // Returns what a unit's tensors are of those in the files.
  const std::vector<ParameterBoxes>& boxes(size_t unit) const { return layers_[unit].boxes; }

 private:
  // A unit's tensors, where its layers have them.
  struct UnitLayers {
    std::vector<std::shared_ptr<LayerModule>> layers;
    std::vector<std::string> names;  // In its layer.
    std::vector<torch::Tensor> on_meta;
    std::vector<ParameterBoxes> boxes;

    void Use(const std::vector<torch::Tensor>& tensors) const;
    void PutBack() const { Use(on_meta); }
  };
  class GatheredBlock;

  GatheredModel(const ModelSpec& spec, std::unique_ptr<StagedModel> whole,
                const HiddenPart& hidden_part, const PipelinePlace& place);
  void MakeUnits(torch::ScalarType type, Communicator& communicator, const RankGroup& group,
                 const UnitOptions& options, const TensorLayers* layers);
  // Begins to gather the unit of that number, if units are gathered ahead and this rank has it.
  void GatherAhead(size_t unit);
  // The same of the unit before `unit`, in backward.
  void GatherAheadBackwards(size_t unit);
  // Forgets what was under way. `by_stages`: whether each stage runs all micro-batches.
  void Begin(int64_t micro_batches, bool by_stages);
  // Has the head see what the next forward of it needs, and returns what `compute` does.
  template <typename Compute>
  auto WithHead(const Compute& compute);

  const ModelSpec spec_;
  const std::unique_ptr<StagedModel> whole_;  // On the meta device.
  const HiddenPart hidden_part_;
  const PipelinePlace place_;
  bool gather_ahead_ = false;
  std::vector<std::unique_ptr<GatheredUnit>> units_;
  std::vector<UnitLayers> layers_;         // By unit.
  std::vector<torch::Tensor> embeddings_;  // Views, from Embed until a tied head has used them.
  // The micro-batches that are under way go through it stage by stage, or as a pipeline does.
  bool by_stages_ = false;
  int64_t not_embedded_ = 0;  // Of them.
};

}  // namespace gemini::trainer
