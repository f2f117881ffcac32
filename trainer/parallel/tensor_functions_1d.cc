// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_functions_1d.h"

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Returns what a function saved, in its backward. Throws where a second derivative is wanted.
c10::intrusive_ptr<SavedLine> Saved(AutogradContext* context) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "layers that ranks share have no second derivative");
  return SavedState<SavedLine>(context);
}

class CopyToLineFunction : public torch::autograd::Function<CopyToLineFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const RankLine& line,
                          const std::string& site) {
    SaveState(context, c10::make_intrusive<SavedLine>(line, site));
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const c10::intrusive_ptr<SavedLine> saved = Saved(context);
    // Others may hold the gradient, too.
    const Tensor sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    AddOverRanks(sum, saved->line, saved->site);
    return {sum, Variable(), Variable()};
  }
};

class ReduceOverLineFunction : public torch::autograd::Function<ReduceOverLineFunction> {
 public:
  static Variable forward(AutogradContext* /*context*/, const Variable& x, const RankLine& line,
                          const std::string& site) {
    AddOverRanks(x, line, site);
    return x;
  }
  static variable_list backward(AutogradContext* /*context*/, variable_list gradients) {
    return {gradients[0], Variable(), Variable()};
  }
};

class GatherOverLineFunction : public torch::autograd::Function<GatherOverLineFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, int64_t dimension,
                          const RankLine& line, const std::string& site) {
    SaveState(context, c10::make_intrusive<SavedLine>(line, site));
    const int64_t along = dimension < 0 ? dimension + x.dim() : dimension;
    context->saved_data["dimension"] = along;
    return GatherOverRanks(x.contiguous(), line, site).movedim(0, along).flatten(along, along + 1);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const c10::intrusive_ptr<SavedLine> saved = Saved(context);
    const int64_t along = context->saved_data["dimension"].toInt();
    const int64_t size = gradients[0].size(along) / saved->line.size();
    return {gradients[0].narrow(along, saved->line.place() * size, size), Variable(), Variable(),
            Variable()};
  }
};

}  // namespace

Tensor CopyToLine(const Tensor& x, const RankLine& line, const std::string& site) {
  return CopyToLineFunction::apply(x, line, site);
}

Tensor ReduceOverLine(Tensor x, const RankLine& line, const std::string& site) {
  return ReduceOverLineFunction::apply(x, line, site);
}

Tensor GatherOverLine(const Tensor& x, int64_t dimension, const RankLine& line,
                      const std::string& site) {
  return GatherOverLineFunction::apply(x, dimension, line, site);
}

}  // namespace gemini::trainer
