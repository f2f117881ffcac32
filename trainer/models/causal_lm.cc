// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/causal_lm.h"

#include <cstddef>
#include <string>

#include "ATen/ops/full_like.h"
#include "absl/strings/str_cat.h"
#include "client/torch/device/vector_math.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/transformer.h"

namespace gemini::trainer {

void LossSum::Backward(double factor) const {
  torch::autograd::backward({sum}, {at::full_like(sum, GradientFor(factor))});
}

LossSum CausalLm::Loss(const torch::Tensor& tokens, double factor) {
  return LossOf(RunBlocks(tokens), tokens, factor);
}

torch::Tensor CausalLm::Loss(const torch::Tensor& tokens) {
  const LossSum loss = Loss(tokens, /*factor=*/1);
  return loss.sum / static_cast<double>(loss.count);
}

torch::Tensor CausalLm::Forward(const torch::Tensor& tokens) { return Head(RunBlocks(tokens)); }

torch::Tensor CausalLm::RunBlocks(const torch::Tensor& tokens) {
  torch::Tensor hidden = Embed(tokens);
  const BatchContext context = ContextOf(hidden);
  for (const std::shared_ptr<Block>& block : blocks_) {
    hidden =
        recompute_ ? ForwardRecomputed(block, hidden, context) : block->Forward(hidden, context);
  }
  return hidden;
}

absl::StatusOr<std::unique_ptr<CausalLm>> MakeCausalLm(const ModelSpec& spec,
                                                       const torch::TensorOptions& options,
                                                       int64_t vocabulary_blocks) {
  if (!c10::isFloatingType(options.dtype().toScalarType())) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters of type ", c10::toString(options.dtype().toScalarType())));
  }
  try {
    client::hooks::ResolveVectorMath();  // Before the first forward.
    PlainLayers layers(options, vocabulary_blocks);
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
