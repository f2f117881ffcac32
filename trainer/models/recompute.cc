// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/recompute.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"
#include "trainer/models/generator_state.h"

namespace gemini::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What the forward of a block leaves for its backward, beside the input.
struct ForwardState : torch::CustomClassHolder {
  std::shared_ptr<Block> block;
  BatchContext context;
  torch::Tensor generator_state;
  torch::Device device = torch::kCPU;  // That generator's device.
  bool training = false;
};

// Goes back to the generator and the training flag of a forward; returns to those of now at its
// end.
class ReturnToForward {
 public:
  explicit ReturnToForward(const ForwardState& state)
      : block_(*state.block), generator_(state.device), training_now_(state.block->is_training()) {
    SetTraining(state.training);
    SetGeneratorState(state.generator_state, state.device);
  }
  ReturnToForward(const ReturnToForward&) = delete;
  ReturnToForward& operator=(const ReturnToForward&) = delete;
  ~ReturnToForward() { SetTraining(training_now_); }

 private:
  void SetTraining(bool training) {
    if (block_.is_training() != training) block_.train(training);
  }

  Block& block_;
  const GeneratorGuard generator_;
  const bool training_now_;
};

// `anchor` requires grad, so that the output does, even if `hidden` does not: the parameters inside
// are no inputs of this function, and autograd does not see them here.
class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
 public:
  static Variable forward(AutogradContext* context, const Variable& hidden,
                          const Variable& /*anchor*/, const std::shared_ptr<Block>& block,
                          const BatchContext& context_of_batch) {
    auto state = c10::make_intrusive<ForwardState>();
    state->block = block;
    state->context = context_of_batch;
    state->device = hidden.device();
    state->generator_state = GeneratorState(state->device);
    state->training = block->is_training();
    context->saved_data["state"] =
        at::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(state));
    context->save_for_backward({hidden});
    return block->Forward(hidden, context_of_batch);
  }

  static variable_list backward(AutogradContext* context, variable_list output_grads) {
    const auto state =
        c10::static_intrusive_pointer_cast<ForwardState>(context->saved_data["state"].toCapsule());
    Variable hidden = context->get_saved_variables()[0].detach();
    hidden.set_requires_grad(context->needs_input_grad(0));
    Variable output;
    {
      const ReturnToForward guard(*state);
      const at::AutoGradMode with_graph(true);
      output = state->block->Forward(hidden, state->context);
    }
    // Re-entrant: accumulates into .grad of the block's parameters, fires their hooks.
    if (output.requires_grad()) torch::autograd::backward({output}, {output_grads[0]});
    return {hidden.grad(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

torch::Tensor ForwardRecomputed(const std::shared_ptr<Block>& block, const torch::Tensor& hidden,
                                const BatchContext& context) {
  if (!at::GradMode::is_enabled()) return block->Forward(hidden, context);
  // Whatever the options of `hidden`: the anchor is never read.
  const torch::Tensor anchor = torch::empty({0}, torch::dtype(torch::kFloat32).requires_grad(true));
  return RecomputeFunction::apply(hidden, anchor, block, context);
}

}  // namespace gemini::trainer
