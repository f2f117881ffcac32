// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/norm_of_parts.h"

#include <optional>

#include "ATen/OpMathType.h"
#include "ATen/ops/stack.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr char kForward[] = "norm";
constexpr char kBackward[] = "norm gradients";

struct SavedNorm : torch::CustomClassHolder {
  SavedNorm(const NormSpec& the_norm, const RankLine& the_line) : norm(the_norm), line(the_line) {}
  const NormSpec norm;
  const RankLine line;
};

// Of rows [tokens, elements]: what is subtracted from a token, [tokens, 1] or undefined, and what
// it is then multiplied by, [tokens, 1].
struct Statistics {
  Tensor mean;
  Tensor scale;
};

Statistics StatisticsOf(const Tensor& rows, const NormSpec& norm, const RankLine& line) {
  const int64_t elements = rows.size(1);
  const auto all_elements = static_cast<double>(elements * line.size());
  if (norm.kind == NormKind::kRms) {
    const Tensor squares = GatherOverRanks(rows.square().sum(1), line, kForward).sum(0);
    return {{}, (squares / all_elements + norm.epsilon).rsqrt_().unsqueeze(1)};
  }
  const Tensor mean = rows.mean(1);
  const Tensor squares = (rows - mean.unsqueeze(1)).square_().sum(1);
  const Tensor all = GatherOverRanks(at::stack({mean, squares}), line, kForward);
  // Ranks have equally many elements, so the mean is that of their means.
  const Tensor means = all.select(1, 0);
  const Tensor of_all = means.mean(0);
  const Tensor sum = all.select(1, 1).sum(0) + (means - of_all).square_().sum(0) * elements;
  return {of_all.unsqueeze(1), (sum / all_elements + norm.epsilon).rsqrt_().unsqueeze(1)};
}

// Returns the normed rows, before the weight.
Tensor Normed(const Tensor& rows, const Statistics& statistics) {
  return (statistics.mean.defined() ? rows - statistics.mean : rows) * statistics.scale;
}

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x,
                          const std::optional<Variable>& weight,
                          const std::optional<Variable>& bias, const NormSpec& norm,
                          const RankLine& line) {
    const auto type = at::toOpMathType(x.scalar_type());
    const Tensor rows = x.reshape({-1, x.size(-1)}).to(type);
    const Statistics statistics = StatisticsOf(rows, norm, line);
    SaveState(context, c10::make_intrusive<SavedNorm>(norm, line));
    context->save_for_backward(
        {x, statistics.mean, statistics.scale, weight.value_or(Tensor()), bias.value_or(Tensor())});
    Tensor normed = Normed(rows, statistics);
    if (weight.has_value()) normed.mul_(Factor(*weight, type, norm));
    if (bias.has_value()) normed.add_(bias->to(type));
    return normed.to(x.scalar_type()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedNorm>(context);
    const variable_list tensors = context->get_saved_variables();
    const Tensor &x = tensors[0], &weight = tensors[3], &bias = tensors[4];
    const Statistics statistics = {tensors[1], tensors[2]};
    const auto type = at::toOpMathType(x.scalar_type());
    const bool is_rms = saved->norm.kind == NormKind::kRms;
    const Tensor normed = Normed(x.reshape({-1, x.size(-1)}).to(type), statistics);
    Tensor rows = gradients[0].reshape(normed.sizes()).to(type);
    Tensor weight_gradient, bias_gradient;
    if (bias.defined()) bias_gradient = rows.sum(0).to(bias.scalar_type());
    if (weight.defined()) {
      weight_gradient = (rows * normed).sum(0).to(weight.scalar_type());
      rows = rows * Factor(weight, type, saved->norm);
    }
    const Tensor along = (rows * normed).sum(1);
    const Tensor sums = is_rms ? along.unsqueeze(0) : at::stack({along, rows.sum(1)});
    AddOverRanks(sums, saved->line, kBackward);
    const auto elements = static_cast<double>(rows.size(1) * saved->line.size());
    Tensor gradient = rows - normed * (sums[0] / elements).unsqueeze(1);
    if (!is_rms) gradient.sub_((sums[1] / elements).unsqueeze(1));
    gradient.mul_(statistics.scale);
    return {gradient.to(x.scalar_type()).view(x.sizes()), weight_gradient, bias_gradient,
            Variable(), Variable()};
  }

 private:
  static Tensor Factor(const Tensor& weight, torch::ScalarType type, const NormSpec& norm) {
    return norm.adds_one ? weight.to(type) + 1 : weight.to(type);
  }
};

std::optional<Variable> IfThere(const Tensor& x) {
  return x.defined() ? std::optional<Variable>(x) : std::nullopt;
}

}  // namespace

Tensor NormOfParts(const Tensor& x, const Tensor& weight, const Tensor& bias, const NormSpec& norm,
                   const RankLine& line) {
  return NormFunction::apply(x, IfThere(weight), IfThere(bias), norm, line);
}

}  // namespace gemini::trainer
