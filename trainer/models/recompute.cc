// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/recompute.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "trainer/models/saved_state.h"

namespace gemini::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What the forward of a block leaves for its backward, beside the input.
struct ForwardState : torch::CustomClassHolder {
  std::shared_ptr<Block> block;
  BatchContext context;
  bool has_pair = false;
};

std::optional<Variable> IfDefined(const Variable& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// `anchor` requires grad, so that the output does, even if `hidden` does not: the parameters inside
// are no inputs of this function, and autograd does not see them here.
class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& hidden,
                               const Variable& /*anchor*/, const std::optional<Variable>& pair,
                               const std::optional<Variable>& router_sums,
                               const std::shared_ptr<Block>& block,
                               const BatchContext& context_of_batch) {
    auto state = c10::make_intrusive<ForwardState>();
    state->block = block;
    state->context = context_of_batch;
    state->has_pair = pair.has_value();
    SaveState(context, state);
    const Stream stream = {.hidden = hidden,
                           .pair = pair.value_or(Variable()),
                           .router_sums = router_sums.value_or(Variable())};
    context->save_for_backward(TensorsOf(stream));
    return TensorsOf(block->Forward(stream, context_of_batch));
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    const auto state = SavedState<ForwardState>(context);
    variable_list inputs = context->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i) {
      // needs_input_grad counts the tensors that forward took, of which the anchor is the second.
      const bool needs_grad = context->needs_input_grad(i == 0 ? 0 : i + 1);
      inputs[i] = inputs[i].detach().set_requires_grad(needs_grad);
    }
    const Stream input = StreamOf(inputs, state->has_pair);
    variable_list outputs;
    {
      const at::AutoGradMode with_graph(true);
      outputs = TensorsOf(state->block->ForwardAgain(input, state->context));
    }
    variable_list roots, grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      grads.push_back(std::move(output_grads[i]));
    }
    // Re-entrant: accumulates into .grad of the block's parameters, fires their hooks.
    if (!roots.empty()) torch::autograd::backward(roots, grads);
    const Stream grads_of_input = GradientsOf(input);
    return {grads_of_input.hidden,      Variable(), grads_of_input.pair,
            grads_of_input.router_sums, Variable(), Variable()};
  }
};

}  // namespace

Stream ForwardRecomputed(const std::shared_ptr<Block>& block, const Stream& stream,
                         const BatchContext& context) {
  if (!at::GradMode::is_enabled()) return block->Forward(stream, context);
  // Whatever the options of the hidden tensor: the anchor is never read.
  const torch::Tensor anchor = torch::empty({0}, torch::dtype(torch::kFloat32).requires_grad(true));
  return StreamOf(RecomputeFunction::apply(stream.hidden, anchor, IfDefined(stream.pair),
                                           IfDefined(stream.router_sums), block, context),
                  /*has_pair=*/stream.pair.defined());
}

}  // namespace gemini::trainer
