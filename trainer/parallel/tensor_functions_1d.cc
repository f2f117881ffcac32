// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_functions_1d.h"

#include "ATen/WrapDimUtils.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class CopyToLineFunction : public torch::autograd::Function<CopyToLineFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const RankLine& line,
                          const std::string& site) {
    SaveState(context, c10::make_intrusive<SavedLine>(line, site));
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedLine>(context);
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

// It keeps which dimension it put parts together in.
struct SavedParts : SavedLine {
  SavedParts(int64_t the_dimension, const RankLine& the_line, const std::string& the_site)
      : SavedLine(the_line, the_site), dimension(the_dimension) {}
  const int64_t dimension;
};

class GatherOverLineFunction : public torch::autograd::Function<GatherOverLineFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, int64_t dimension,
                          const RankLine& line, const std::string& site) {
    const int64_t d = at::maybe_wrap_dim(dimension, x.dim());
    SaveState(context, c10::make_intrusive<SavedParts>(d, line, site));
    return GatherOverRanks(x, line, site).movedim(0, d).flatten(d, d + 1);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = SavedForBackward<SavedParts>(context);
    const int64_t size = gradients[0].size(saved->dimension) / saved->line.size();
    return {gradients[0].narrow(saved->dimension, saved->line.place() * size, size), Variable(),
            Variable(), Variable()};
  }
};

}  // namespace

Tensor CopyToLine(const Tensor& x, const RankLine& line, const std::string& site) {
  return line.is_shared() ? CopyToLineFunction::apply(x, line, site) : x;
}

Tensor ReduceOverLine(Tensor x, const RankLine& line, const std::string& site) {
  return line.is_shared() ? ReduceOverLineFunction::apply(x, line, site) : x;
}

Tensor GatherOverLine(const Tensor& x, int64_t dimension, const RankLine& line,
                      const std::string& site) {
  return line.is_shared() ? GatherOverLineFunction::apply(x, dimension, line, site) : x;
}

}  // namespace gemini::trainer
