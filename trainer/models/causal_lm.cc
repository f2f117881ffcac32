// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/causal_lm.h"

#include <cstddef>
#include <string>

#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "absl/strings/str_cat.h"
#include "client/torch/device/vector_math.h"
#include "gemini/system/status_macros.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/transformer.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kIgnored = -100;  // A label that counts for nothing: Torch's default.

}  // namespace

torch::Tensor ShiftedCrossEntropy(const torch::Tensor& logits, const torch::Tensor& labels) {
  // The labels are shifted and padded, and not the logits cut: that would copy them.
  const torch::Tensor shifted = at::constant_pad_nd(labels, {0, 1}, kIgnored)
                                    .slice(/*dim=*/-1, /*start=*/1)
                                    .contiguous()
                                    .view(-1);
  return at::cross_entropy_loss(logits.to(torch::kFloat32).view({-1, logits.size(-1)}), shifted,
                                /*weight=*/{}, at::Reduction::Mean, kIgnored);
}

torch::Tensor CausalLm::Loss(const torch::Tensor& tokens) {
  return ShiftedCrossEntropy(Forward(tokens), tokens);
}

torch::Tensor CausalLm::Forward(const torch::Tensor& tokens) {
  torch::Tensor hidden = Embed(tokens);
  const BatchContext context = ContextOf(hidden);
  for (const std::shared_ptr<Block>& block : blocks_) {
    hidden =
        recompute_ ? ForwardRecomputed(block, hidden, context) : block->Forward(hidden, context);
  }
  return Head(hidden);
}

absl::StatusOr<std::unique_ptr<CausalLm>> MakeCausalLm(const ModelSpec& spec,
                                                       const torch::TensorOptions& options) {
  if (!c10::isFloatingType(options.dtype().toScalarType())) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters of type ", c10::toString(options.dtype().toScalarType())));
  }
  try {
    client::hooks::ResolveVectorMath();  // Before the first forward.
    PlainLayers layers(options);
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
