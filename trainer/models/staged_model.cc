// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/staged_model.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/torch/device/vector_math.h"
#include "trainer/models/pair_trunk_model.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/transformer.h"

namespace gemini::trainer {

BatchLoss StagedModel::Losses(const torch::Tensor& tokens, const Labels& labels,
                              const LossFactors& factors) {
  BatchContext context;
  Stream last = EmbedAndForward({.inputs = tokens}, context);
  return LossOf(std::move(last), context, labels, factors);
}

BatchLoss StagedModel::Losses(const Batch& batch, const LossFactors& factors) {
  set_documents(batch.documents);
  BatchContext context;
  Stream last = EmbedAndForward(batch, context);
  return LossOf(std::move(last), context, batch.labels, factors);
}

torch::Tensor StagedModel::Forward(const Batch& batch) {
  BatchContext context;
  const Stream last = EmbedAndForward(batch, context);
  return Head(last, context);
}

Stream StagedModel::EmbedAndForward(const Batch& batch, BatchContext& context) {
  Stream stream = Embed(batch);
  context = ContextOf(stream.hidden);
  return ForwardBlocks(std::move(stream), context, 0, blocks_.size());
}

Stream StagedModel::ForwardBlocks(Stream stream, const BatchContext& context, size_t begin,
                                  size_t end) const {
  for (size_t b = begin; b < end; ++b) {
    stream = recompute_ ? ForwardRecomputed(blocks_[b], stream, context)
                        : blocks_[b]->Forward(stream, context);
  }
  return stream;
}

absl::StatusOr<std::unique_ptr<StagedModel>> MakeStagedModel(const ModelSpec& spec,
                                                             const torch::TensorOptions& options,
                                                             const VocabularyOptions& vocabulary) {
  if (!c10::isFloatingType(options.dtype().toScalarType())) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters of type ", c10::toString(options.dtype().toScalarType())));
  }
  PlainLayers layers(options, vocabulary);
  return MakeStagedModel(spec, layers);
}

absl::StatusOr<std::unique_ptr<StagedModel>> MakeStagedModel(const ModelSpec& spec,
                                                             LayerSet& layers) {
  try {
    client::hooks::ResolveVectorMath();  // Before the first forward.
    if (spec.pair_trunk.has_value()) return std::make_unique<PairTrunk>(spec, layers);
    return std::make_unique<Transformer>(spec, layers);
  } catch (const c10::Error& error) {  // Of memory, of the device, or of the names.
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make the model: ", error.what_without_backtrace()));
  }
}

std::vector<ParameterShape> ParameterShapesOf(const torch::nn::Module& model) {
  std::vector<ParameterShape> shapes;
  for (const auto& parameter : model.named_parameters()) {
    shapes.push_back({parameter.key(), parameter.value().sizes().vec()});
  }
  return shapes;
}

absl::Status LoadModel(const HfCheckpoint& checkpoint, torch::nn::Module& model) {
  const auto parameters = model.named_parameters();
  for (const auto& parameter : parameters) {
    const torch::Tensor& value = parameter.value();
    if (!value.is_cpu() || value.scalar_type() != torch::kFloat32 || !value.is_contiguous()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter ", parameter.key(), " is not a contiguous fp32 tensor on the CPU"));
    }
  }
  return LoadInto(checkpoint, ParameterShapesOf(model),
                  [&](const std::string& name, int64_t offset_bytes,
                      int64_t size_bytes) -> absl::StatusOr<absl::Span<std::byte>> {
                    auto* bytes = static_cast<std::byte*>(parameters[name].mutable_data_ptr());
                    return absl::MakeSpan(bytes + offset_bytes, static_cast<size_t>(size_bytes));
                  });
}

}  // namespace gemini::trainer
