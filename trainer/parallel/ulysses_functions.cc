// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/ulysses_functions.h"

#include "ATen/ops/cat.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"
#include "trainer/parallel/tensor_functions_1d.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr char kToTokens[] = "tokens of heads";
constexpr char kToWidth[] = "heads of tokens";

// These two exchange tensors, and autograd does not see them.
Tensor ToTokens(const Tensor& x, const RankLine& line, const std::string& site) {
  const Tensor parts = x.unflatten(2, {line.size(), -1}).movedim(2, 0).contiguous();
  return ExchangeParts(parts, line, site).movedim(0, 1).flatten(1, 2);
}
Tensor ToWidth(const Tensor& x, const RankLine& line, const std::string& site) {
  const Tensor parts = x.unflatten(1, {line.size(), -1}).movedim(1, 0).contiguous();
  return ExchangeParts(parts, line, site).movedim(0, 2).flatten(2, 3);
}

class WholeTokensFunction : public torch::autograd::Function<WholeTokensFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const RankLine& line) {
    SaveState(context, c10::make_intrusive<SavedLine>(line, kToTokens));
    return ToTokens(x, line, kToTokens);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedLine>(context);
    return {ToWidth(gradients[0], saved->line, saved->site), Variable()};
  }
};

class WholeWidthFunction : public torch::autograd::Function<WholeWidthFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const RankLine& line) {
    SaveState(context, c10::make_intrusive<SavedLine>(line, kToWidth));
    return ToWidth(x, line, kToWidth);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedLine>(context);
    return {ToTokens(gradients[0], saved->line, saved->site), Variable()};
  }
};

}  // namespace

Tensor WholeTokens(const Tensor& x, const RankLine& line) {
  return WholeTokensFunction::apply(x, line);
}

Tensor WholeWidth(const Tensor& x, const RankLine& line) {
  return WholeWidthFunction::apply(x, line);
}

Tensor GatherTokens(const Tensor& x, const RankLine& line, bool zigzag) {
  const Tensor all = GatherOverLine(x, /*dimension=*/1, line, "tokens");
  if (!zigzag) return all;
  // Of each rank two slices, of which the second ones come from the end of the sequence on.
  const Tensor slices = all.unflatten(1, {line.size(), 2, -1});
  return at::cat({slices.select(2, 0).flatten(1, 2), slices.select(2, 1).flip(1).flatten(1, 2)},
                 /*dim=*/1);
}

}  // namespace gemini::trainer
