// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/layers_of_parts.h"

#include "ATen/core/grad_mode.h"
#include "trainer/models/attention.h"
#include "trainer/parallel/tensor_functions_1d.h"

namespace gemini::trainer {

using torch::Tensor;

Tensor InputOfParts::Forward(const Tensor& x) const {
  return at::GradMode::is_enabled() ? GatherParts(x, along_.dimension, along_.line, site_, parts_)
                                    : GatherParts(x, along_.dimension, along_.line, site_);
}

SummedLayer::SummedLayer(std::shared_ptr<Layer> layer, std::vector<RankLine> lines)
    : layer_(std::move(layer)), lines_(std::move(lines)) {
  for (const auto& own : layer_->named_parameters(/*recurse=*/false)) {
    register_parameter(own.key(), own.value());
    names_.push_back(own.key());
  }
}

Tensor SummedLayer::Forward(const Tensor& x) const {
  for (const std::string& name : names_) layer_->Replace(name, WithSums(Own(name), lines_));
  Tensor out = layer_->Forward(x);
  for (const std::string& name : names_) layer_->Replace(name, Tensor());  // Keeps no graph.
  return out;
}

Tensor WithSums(Tensor parameter, const std::vector<RankLine>& lines) {
  for (const RankLine& line : lines) {
    if (parameter.defined()) parameter = CopyToLine(parameter, line, "gradients of parts");
  }
  return parameter;
}

Tensor HeadsOfPart::Forward(const Tensor& query, const Tensor& key, const Tensor& value,
                            const HeadAngles& angles, const RowAttentionOptions& options) const {
  RowAttentionOptions own = options;
  own.first_head = heads_.index * (all_heads_ / heads_.count);
  own.all_heads = all_heads_;
  own.first_sequence = sequences_.index * query.size(0);
  return SelfAttention(query, key, value, angles, own);
}

}  // namespace gemini::trainer
