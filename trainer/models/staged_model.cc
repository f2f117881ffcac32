// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/staged_model.h"

#include <cstddef>
#include <string>
#include <utility>

#include "ATen/ops/full_like.h"
#include "absl/strings/str_cat.h"
#include "client/torch/device/vector_math.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/variable.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/transformer.h"

namespace gemini::trainer {

void LossSum::Add(const LossValues& batch, int64_t rows) {
  LossSum sum;
  sum.labels_ = batch.labels;
  sum.rows_ = rows;
  const auto num_rows = static_cast<double>(rows);
  sum.cross_entropies_ = batch.cross_entropy * static_cast<double>(batch.labels);
  sum.beside_ = (batch.total - batch.cross_entropy) * num_rows;
  if (batch.router.has_value()) sum.routers_ = *batch.router * num_rows;
  Add(sum);
}

void LossSum::Add(const LossSum& other) {
  cross_entropies_ += other.cross_entropies_;
  labels_ += other.labels_;
  beside_ += other.beside_;
  if (other.routers_.has_value()) routers_ = routers_.value_or(0) + *other.routers_;
  rows_ += other.rows_;
}

LossValues LossSum::Mean() const {
  const auto num_rows = static_cast<double>(rows_);
  LossValues mean = {.labels = labels_};
  mean.cross_entropy = cross_entropies_ / static_cast<double>(labels_);
  mean.total = mean.cross_entropy + beside_ / num_rows;
  if (routers_.has_value()) mean.router = *routers_ / num_rows;
  return mean;
}

LossValues BatchLoss::Values() const {
  LossValues values = {.labels = count};
  values.total = values.cross_entropy = sum.item<double>() / static_cast<double>(count);
  if (!router.defined()) return values;
  values.router = router.item<double>();
  values.total += router_coefficient * *values.router;
  return values;
}

torch::Tensor BatchLoss::Total() const {
  const torch::Tensor mean = sum / static_cast<double>(count);
  return router.defined() ? mean + router_coefficient * router : mean;
}

void BatchLoss::Backward(const LossFactors& factors) const {
  torch::autograd::variable_list roots = {sum};
  torch::autograd::variable_list gradients = {at::full_like(sum, factors.token)};
  if (router.defined()) {
    roots.push_back(router);
    gradients.push_back(at::full_like(router, factors.router * router_coefficient));
  }
  torch::autograd::backward(roots, gradients);
}

BatchLoss StagedModel::Losses(const torch::Tensor& tokens, const Labels& labels,
                              const LossFactors& factors) {
  return LossOf(EmbedAndForward(tokens), labels, factors);
}

torch::Tensor StagedModel::Forward(const torch::Tensor& tokens) {
  return Head(EmbedAndForward(tokens).hidden);
}

Stream StagedModel::EmbedAndForward(const torch::Tensor& tokens) {
  Stream stream = {.hidden = Embed(tokens)};
  const BatchContext context = ContextOf(stream.hidden);
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
