// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/gathered_model.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "gemini/system/status_macros.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {

int64_t ShardBlockElements(MomentFormat moments) {
  return moments == MomentFormat::k8Bit
             ? std::max(client::kNormBlockElements, kQuantisationBlockElements)
             : client::kNormBlockElements;
}

class GatheredModel::GatheredBlock final : public Block {
 public:
  // `unit`: its number.
  GatheredBlock(std::shared_ptr<Block> block, GatheredModel& model, size_t unit)
      : block_(std::move(block)), model_(model), number_(unit) {}

  Stream Forward(const Stream& stream, const BatchContext& context) override {
    layers().Use(unit().Views(UnitUse::kAgain));
    model_.GatherAhead(number_ + 1);
    const Stream out = Compute(stream, context);
    unit().Release();
    return StreamOf(
        unit().GatherBehind(TensorsOf(out), [this] { model_.GatherAheadBackwards(number_); }),
        /*has_pair=*/out.pair.defined());
  }
  Stream ForwardAgain(const Stream& stream, const BatchContext& context) override {
    layers().Use(unit().Views(UnitUse::kToTheEnd));
    model_.GatherAheadBackwards(number_);
    return Compute(stream, context);
  }

 private:
  GatheredUnit& unit() const { return *model_.units_[number_]; }
  const UnitLayers& layers() const { return model_.layers_[number_]; }
  Stream Compute(const Stream& stream, const BatchContext& context) {
    Stream out = block_->Forward(stream, context);
    layers().PutBack();
    return out;
  }

  const std::shared_ptr<Block> block_;
  GatheredModel& model_;
  const size_t number_;
};

void GatheredModel::GatherAhead(size_t unit) {
  if (gather_ahead_ && unit < units_.size() && HasUnit(place_.rank, unit)) {
    units_[unit]->BeginGather();
  }
}

bool GatheredModel::HasUnit(int64_t pipeline_rank, size_t unit) const {
  const bool has_copy =
      unit == 0 && spec_.tied_head && pipeline_rank == place_.stages.num_ranks() - 1;
  return has_copy || pipeline_rank == FirstRankWith(unit);
}

int64_t GatheredModel::FirstRankWith(size_t unit) const {
  if (unit == 0) return 0;
  return unit > blocks_.size() ? place_.stages.num_ranks() - 1
                               : place_.stages.RankOfBlock(static_cast<int64_t>(unit) - 1);
}

void GatheredModel::GatherAheadBackwards(size_t unit) {
  if (unit > 1 || spec_.embeddings_need_values()) GatherAhead(unit - 1);
}

void GatheredModel::UnitLayers::Use(const std::vector<torch::Tensor>& tensors) const {
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->Replace(names[i], tensors[i]);
}

absl::StatusOr<std::unique_ptr<GatheredModel>> GatheredModel::Make(
    const ModelSpec& spec, torch::ScalarType type, Communicator& communicator,
    const RankGroup& group, const UnitOptions& options, TensorLayers* layers,
    const std::optional<PipelinePlace>& place) {
  GEMINI_ASSIGN_OR_RETURN(std::unique_ptr<StagedModel> whole,
                          layers != nullptr
                              ? MakeStagedModel(spec, *layers)
                              : MakeStagedModel(spec, torch::dtype(type).device(torch::kMeta),
                                                {.on_cpu = !options.device.is_cuda()}));
  std::unique_ptr<GatheredModel> model(new GatheredModel(
      spec, std::move(whole), layers != nullptr ? layers->hidden_part() : HiddenPart(),
      place.value_or(PipelinePlace{.stages = ModelStages(spec.num_blocks)})));
  model->MakeUnits(type, communicator, group, options, layers);
  return model;
}

GatheredModel::GatheredModel(const ModelSpec& spec, std::unique_ptr<StagedModel> whole,
                             const HiddenPart& hidden_part, const PipelinePlace& place)
    : spec_(spec), whole_(std::move(whole)), hidden_part_(hidden_part), place_(place) {}

void GatheredModel::MakeUnits(torch::ScalarType type, Communicator& communicator,
                              const RankGroup& group, const UnitOptions& options,
                              const TensorLayers* layers) {
  std::map<const c10::TensorImpl*, std::pair<std::shared_ptr<LayerModule>, std::string>> places;
  for (const std::shared_ptr<torch::nn::Module>& module : whole_->modules(/*include_self=*/false)) {
    const auto layer = std::dynamic_pointer_cast<LayerModule>(module);
    if (layer == nullptr) continue;
    for (const auto& own : layer->named_parameters(/*recurse=*/false)) {
      places[own.value().unsafeGetTensorImpl()] = {layer, own.key()};
    }
  }
  std::map<const c10::TensorImpl*, size_t> block_of;
  const size_t num_blocks = whole_->blocks().size();
  for (size_t b = 0; b < num_blocks; ++b) {
    for (const torch::Tensor& parameter : whole_->blocks()[b]->parameters()) {
      block_of[parameter.unsafeGetTensorImpl()] = b;
    }
  }

  for (size_t b = 0; b < num_blocks; ++b) {
    blocks_.push_back(std::make_shared<GatheredBlock>(whole_->blocks()[b], *this, b + 1));
  }

  layers_.resize(num_blocks + 2);
  std::vector<std::vector<UnitTensor>> tensors(num_blocks + 2);
  size_t unit = 0;
  for (const auto& parameter : whole_->named_parameters()) {
    const c10::TensorImpl* const impl = parameter.value().unsafeGetTensorImpl();
    const auto block = block_of.find(impl);
    if (block != block_of.end()) {
      unit = block->second + 1;
    } else if (unit > 0) {
      unit = num_blocks + 1;  // They are in the order of their first use.
    }
    tensors[unit].push_back(
        {parameter.key(), parameter.value().sizes().vec(), /*is_trained=*/true});
    const auto& [layer, name] = places.at(impl);
    layers_[unit].layers.push_back(layer);
    layers_[unit].names.push_back(name);
    layers_[unit].on_meta.push_back(parameter.value());
    layers_[unit].boxes.push_back(layers != nullptr
                                      ? layers->BoxesOf(parameter.value())
                                      : ParameterBoxes(parameter.value().sizes().vec()));
  }
  if (tensors.back().empty()) tensors.pop_back();  // Nothing is behind the blocks but a tied head.
  for (size_t u = 0; u < tensors.size(); ++u) {
    const std::string name = u == 0                ? "the embeddings"
                             : u == num_blocks + 1 ? "the head"
                                                   : absl::StrCat("block ", u - 1);
    UnitOptions own = options;
    own.is_here = HasUnit(place_.rank, u);
    if (u == 0 && spec_.tied_head && own.is_here) own.copies = place_.ends;
    units_.push_back(std::make_unique<GatheredUnit>(name, std::move(tensors[u]), type, communicator,
                                                    group, own));
    const GatheredUnit& made = *units_.back();
    for (size_t i = 0; i < made.pieces().size(); ++i) {
      const ShardPiece& piece = made.pieces()[i];
      AddParameter(*this, PieceName(made.tensors()[static_cast<size_t>(piece.tensor)].name, piece),
                   made.parameters()[i]);
    }
  }
  for (const std::unique_ptr<GatheredUnit>& made : units_) {
    for (const GatheredUnit::NamedTensor& beside : made->BesidePieces()) {
      AddParameter(*this, beside.name, beside.tensor);
    }
  }
}

void GatheredModel::NoteUpdate() {
  for (const std::unique_ptr<GatheredUnit>& unit : units_) unit->NoteUpdate();
}

void GatheredModel::set_last_micro_batch(bool is_last) {
  for (const std::unique_ptr<GatheredUnit>& unit : units_) unit->set_last_micro_batch(is_last);
}

void GatheredModel::BeginMicroBatches(int64_t count) { Begin(count, /*by_stages=*/true); }

void GatheredModel::Begin(int64_t micro_batches, bool by_stages) {
  by_stages_ = by_stages;
  not_embedded_ = micro_batches;
  embeddings_.clear();
  for (const std::unique_ptr<GatheredUnit>& unit : units_) unit->ReleaseAll();
}

void GatheredModel::BeginEvaluation() {
  for (const std::unique_ptr<GatheredUnit>& unit : units_) unit->Refresh();
}

void GatheredModel::Forget() {
  Begin(/*micro_batches=*/0, /*by_stages=*/false);
  NoteUpdate();
}

void GatheredModel::HoldStage(size_t stage) {
  if (stage < units_.size()) units_[stage]->Hold();
  if (stage > blocks_.size() && spec_.tied_head) units_.front()->Hold();
}

void GatheredModel::ReleaseStage(size_t stage) {
  if (stage < units_.size()) units_[stage]->Release();
  if (stage > blocks_.size() && spec_.tied_head) units_.front()->Release();
}

void GatheredModel::train(bool on) {
  StagedModel::train(on);
  whole_->train(on);
}

Stream GatheredModel::Embed(const Batch& batch) {
  if (not_embedded_ == 0) Begin(1, /*by_stages=*/false);
  --not_embedded_;
  whole_->set_dropout_draw(dropout_draw());
  whole_->set_documents(documents());
  GatheredUnit& unit = *units_.front();
  const bool again = spec_.embeddings_need_values();
  embeddings_ = unit.Views(again ? UnitUse::kAgain : UnitUse::kOnce);
  layers_.front().Use(embeddings_);
  GatherAhead(1);
  const Stream embedded = whole_->Embed(batch);
  layers_.front().PutBack();
  unit.Release();
  if (!spec_.tied_head || by_stages_) embeddings_.clear();
  if (!again) return embedded;
  return StreamOf(unit.GatherBehind(TensorsOf(embedded)), /*has_pair=*/embedded.pair.defined());
}

BatchContext GatheredModel::ContextOf(const torch::Tensor& hidden) const {
  whole_->set_dropout_draw(dropout_draw());
  whole_->set_routing(routing());
  whole_->set_documents(documents());
  return whole_->ContextOf(hidden);
}

template <typename Compute>
auto GatheredModel::WithHead(const Compute& compute) {
  // Of what is behind the blocks: a tied head has none of its own.
  GatheredUnit* const unit = units_.size() > blocks_.size() + 1 ? units_.back().get() : nullptr;
  if (unit != nullptr) layers_.back().Use(unit->Views(UnitUse::kToTheEnd));
  if (spec_.tied_head) {
    GatheredUnit& table = *units_.front();
    if (by_stages_) {
      embeddings_ = table.Views(UnitUse::kToTheEnd);
      if (place_.stages.num_ranks() == 1) table.set_last_micro_batch(false);  // Look-ups follow.
    } else {
      table.Hold();
    }
    layers_.front().Use(std::exchange(embeddings_, {}));
  }
  if (at::GradMode::is_enabled()) GatherAhead(blocks_.size());  // Backward begins with it.
  auto result = compute();
  if (spec_.tied_head) {
    layers_.front().PutBack();
    if (!by_stages_ || !at::GradMode::is_enabled()) units_.front()->Release();
  }
  if (unit != nullptr) {
    layers_.back().PutBack();
    if (!at::GradMode::is_enabled()) unit->Release();
  }
  return result;
}

torch::Tensor GatheredModel::Head(const Stream& last, const BatchContext& context) {
  return WithHead([&] { return whole_->Head(last, context); });
}

BatchLoss GatheredModel::LossOf(Stream last, const BatchContext& context, const Labels& labels,
                                const LossFactors& factors) {
  return WithHead([&] { return whole_->LossOf(std::move(last), context, labels, factors); });
}

}  // namespace gemini::trainer
