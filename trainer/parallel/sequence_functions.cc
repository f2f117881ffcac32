// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/sequence_functions.h"

#include <optional>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/linear.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// These two exchange tensors, and autograd does not see them.
Tensor PutTogether(const Tensor& part, const RankLine& line, const std::string& site) {
  const Tensor all = GatherOverRanks(part.contiguous(), line, site);
  return part.dim() == 3 ? all.transpose(0, 1).flatten(1, 2) : all.flatten(0, 1);
}
Tensor AddUpInParts(const Tensor& whole, const RankLine& line, const std::string& site) {
  const bool is_by_sequence = whole.dim() == 3;
  const Tensor parts = whole.unflatten(is_by_sequence ? 1 : 0, {line.size(), -1});
  return ReduceScatterOverRanks((is_by_sequence ? parts.transpose(0, 1) : parts).contiguous(), line,
                                site);
}

// A gather for layers owns the parts that these layers read again in backward.
struct SavedGather : SavedLine {
  SavedGather(const RankLine& the_line, std::string the_site,
              std::shared_ptr<GatheredParts> the_parts)
      : SavedLine(the_line, std::move(the_site)), parts(std::move(the_parts)) {}
  const std::shared_ptr<GatheredParts> parts;
};
struct SavedParts : torch::CustomClassHolder {
  explicit SavedParts(std::shared_ptr<GatheredParts> the_parts) : parts(std::move(the_parts)) {}
  const std::shared_ptr<GatheredParts> parts;
};

// Returns what a function saved, in its backward. Throws where a second derivative is wanted.
template <typename State>
c10::intrusive_ptr<State> Saved(AutogradContext* context) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "layers that ranks share have no second derivative");
  return SavedState<State>(context);
}

class GatherFunction : public torch::autograd::Function<GatherFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& part, const RankLine& line,
                          const std::string& site, const std::shared_ptr<GatheredParts>& parts) {
    SaveState(context, c10::make_intrusive<SavedGather>(line, site, parts));
    return PutTogether(part, line, site);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = Saved<SavedGather>(context);
    return {AddUpInParts(gradients[0], saved->line, saved->site), Variable(), Variable(),
            Variable()};
  }
};

class ReduceScatterFunction : public torch::autograd::Function<ReduceScatterFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& whole, const RankLine& line,
                          const std::string& site) {
    SaveState(context, c10::make_intrusive<SavedLine>(line, site));
    return AddUpInParts(whole, line, site);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = Saved<SavedLine>(context);
    return {PutTogether(gradients[0], saved->line, saved->site), Variable(), Variable()};
  }
};

class LinearOfPartsFunction : public torch::autograd::Function<LinearOfPartsFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& whole, const Variable& weight,
                          const std::optional<Variable>& bias,
                          const std::shared_ptr<GatheredParts>& parts) {
    SaveState(context, c10::make_intrusive<SavedParts>(parts));
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["learns_weight"] = weight.requires_grad();
    if (weight.requires_grad()) parts->AddReader();
    context->save_for_backward({weight});
    return at::linear(whole, weight, bias.value_or(Tensor()));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = Saved<SavedParts>(context);
    const Tensor weight = context->get_saved_variables()[0];
    const Tensor rows = gradients[0].reshape({-1, gradients[0].size(-1)});
    Tensor weight_gradient, bias_gradient;
    if (context->saved_data["learns_weight"].toBool()) {
      const Tensor whole = saved->parts->ForBackward();
      weight_gradient = rows.t().mm(whole.reshape({-1, whole.size(-1)}));
    }
    if (context->saved_data["has_bias"].toBool()) bias_gradient = rows.sum(0);
    return {gradients[0].matmul(weight), weight_gradient, bias_gradient, Variable()};
  }
};

}  // namespace

Tensor GatherParts(const Tensor& part, const RankLine& line, const std::string& site) {
  return GatherFunction::apply(part, line, site, std::shared_ptr<GatheredParts>());
}

Tensor GatherParts(const Tensor& part, const RankLine& line, const std::string& site,
                   std::weak_ptr<GatheredParts>& parts) {
  const auto made = std::make_shared<GatheredParts>(part.detach(), line, site);
  parts = made;
  return GatherFunction::apply(part, line, site, made);
}

Tensor ReduceScatterParts(const Tensor& whole, const RankLine& line, const std::string& site) {
  return ReduceScatterFunction::apply(whole, line, site);
}

GatheredParts::GatheredParts(const Tensor& part, const RankLine& line, std::string site)
    : part_(part), line_(line), site_(std::move(site)) {}

Tensor GatheredParts::ForBackward() {
  if (!whole_.defined()) whole_ = PutTogether(part_, line_, site_);
  if (--num_readers_ > 0) return whole_;
  // Graph nodes, which keep this, live as long as the loss.
  part_.reset();
  return std::exchange(whole_, Tensor());
}

Tensor LinearOfParts(const Tensor& x, const std::shared_ptr<GatheredParts>& parts,
                     const Tensor& weight, const Tensor& bias) {
  if (parts == nullptr || !at::GradMode::is_enabled()) return at::linear(x, weight, bias);
  return LinearOfPartsFunction::apply(
      x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, parts);
}

}  // namespace gemini::trainer
