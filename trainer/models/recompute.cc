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
};

// The tensors of a stream that are there: functions of autograd take and return no others.
variable_list TensorsOf(const Stream& stream) {
  variable_list tensors = {stream.hidden};
  if (stream.router_sums.defined()) tensors.push_back(stream.router_sums);
  return tensors;
}

Stream StreamOf(const variable_list& tensors) {
  return {.hidden = tensors[0], .router_sums = tensors.size() > 1 ? tensors[1] : Variable()};
}

// `anchor` requires grad, so that the output does, even if `hidden` does not: the parameters inside
// are no inputs of this function, and autograd does not see them here.
class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
 public:
  // What needs_input_grad calls the inputs, of which it counts the tensors.
  static constexpr size_t kHidden = 0, kRouterSums = 2;

  static variable_list forward(AutogradContext* context, const Variable& hidden,
                               const Variable& /*anchor*/,
                               const std::optional<Variable>& router_sums,
                               const std::shared_ptr<Block>& block,
                               const BatchContext& context_of_batch) {
    auto state = c10::make_intrusive<ForwardState>();
    state->block = block;
    state->context = context_of_batch;
    SaveState(context, state);
    const Stream stream = {.hidden = hidden, .router_sums = router_sums.value_or(Variable())};
    context->save_for_backward(TensorsOf(stream));
    return TensorsOf(block->Forward(stream, context_of_batch));
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    const auto state = SavedState<ForwardState>(context);
    Stream input = StreamOf(context->get_saved_variables());
    input.hidden = Leaf(input.hidden, context->needs_input_grad(kHidden));
    if (input.router_sums.defined()) {
      input.router_sums = Leaf(input.router_sums, context->needs_input_grad(kRouterSums));
    }
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
    const Variable sums_grad = input.router_sums.defined() ? input.router_sums.grad() : Variable();
    return {input.hidden.grad(), Variable(), sums_grad, Variable(), Variable()};
  }

 private:
  static Variable Leaf(const Variable& tensor, bool needs_grad) {
    return tensor.detach().set_requires_grad(needs_grad);
  }
};

}  // namespace

Stream ForwardRecomputed(const std::shared_ptr<Block>& block, const Stream& stream,
                         const BatchContext& context) {
  if (!at::GradMode::is_enabled()) return block->Forward(stream, context);
  // Whatever the options of the hidden tensor: the anchor is never read.
  const torch::Tensor anchor = torch::empty({0}, torch::dtype(torch::kFloat32).requires_grad(true));
  std::optional<Variable> router_sums;
  if (stream.router_sums.defined()) router_sums = stream.router_sums;
  return StreamOf(RecomputeFunction::apply(stream.hidden, anchor, router_sums, block, context));
}

}  // namespace gemini::trainer
