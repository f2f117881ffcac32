// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/vertical_schedule.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/edge.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/variable.h"
#include "trainer/models/generator_state.h"

namespace gemini::trainer {
namespace {

// The input of one block for one micro-batch, and what its dropout began with.
struct Boundary {
  int64_t hidden = 0;  // In the activation store.
  torch::Tensor generator_state;
};

torch::Tensor Leaf(const torch::Tensor& hidden) { return hidden.detach().set_requires_grad(true); }

}  // namespace

absl::StatusOr<std::vector<double>> RunVertically(
    CausalLm& model, absl::Span<const torch::Tensor> micro_batches, ActivationStore& activations,
    absl::FunctionRef<absl::Status(int64_t micro_batch, double loss)> check, double loss_scale) {
  const at::AutoGradMode with_graph(true);
  const size_t count = micro_batches.size();
  const torch::Device device = micro_batches.front().device();
  // Where backward enters the graph of each embedding, which holds the tokens and little else. The
  // tensor itself would keep the memory that the store believes to have freed.
  std::vector<torch::autograd::Edge> embeddings;
  std::vector<torch::Tensor> hidden;  // By micro-batch: the output of the last block that ran.
  std::vector<BatchContext> contexts;
  for (const torch::Tensor& tokens : micro_batches) {
    const torch::Tensor embedded = model.Embed(tokens);
    // Frozen embeddings have no graph.
    embeddings.push_back(embedded.requires_grad() ? torch::autograd::impl::gradient_edge(embedded)
                                                  : torch::autograd::Edge());
    hidden.push_back(embedded.detach());
    // It depends on the length alone, so micro-batches of one length share it.
    const bool shared = !contexts.empty() && hidden.back().size(1) == hidden.front().size(1);
    contexts.push_back(shared ? contexts.front() : model.ContextOf(hidden.back()));
  }

  std::vector<Boundary> boundaries;  // Block after block, of each the micro-batches in their order.
  {
    const at::NoGradGuard no_graph;
    for (const std::shared_ptr<Block>& block : model.blocks()) {
      for (size_t i = 0; i < count; ++i) {
        Boundary& input = boundaries.emplace_back();
        input.generator_state = GeneratorState(device);
        const torch::Tensor output = block->Forward(hidden[i], contexts[i]);
        GEMINI_ASSIGN_OR_RETURN(input.hidden, activations.Put(std::exchange(hidden[i], output)));
      }
    }
  }

  std::vector<double> losses;
  for (size_t i = 0; i < count; ++i) {
    torch::Tensor leaf = Leaf(std::exchange(hidden[i], {}));
    const double factor = loss_scale / static_cast<double>(count);
    const LossSum loss = model.LossOf(leaf, micro_batches[i], factor);
    losses.push_back(loss.Mean());
    GEMINI_RETURN_IF_ERROR(check(static_cast<int64_t>(i), losses.back()));
    loss.Backward(factor);
    hidden[i] = leaf.grad();  // From here on: the gradient of the output of the block that is next.
  }

  const GeneratorGuard keep(device);
  for (size_t b = model.blocks().size(); b-- > 0;) {
    for (size_t i = 0; i < count; ++i) {
      const Boundary& input = boundaries[b * count + i];
      GEMINI_ASSIGN_OR_RETURN(const torch::Tensor saved, activations.Take(input.hidden));
      // The next one comes back while this one is computed with.
      if (i + 1 < count) {
        GEMINI_RETURN_IF_ERROR(activations.Prefetch(boundaries[b * count + i + 1].hidden));
      } else if (b > 0) {
        GEMINI_RETURN_IF_ERROR(activations.Prefetch(boundaries[(b - 1) * count].hidden));
      }
      const torch::Tensor leaf = Leaf(saved);
      SetGeneratorState(input.generator_state, device);
      const torch::Tensor output = model.blocks()[b]->Forward(leaf, contexts[i]);
      torch::autograd::backward({output}, {std::exchange(hidden[i], {})});
      hidden[i] = leaf.grad();
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (!embeddings[i].is_valid()) continue;
    torch::autograd::Engine::get_default_engine().execute(
        {std::exchange(embeddings[i], {})}, {std::exchange(hidden[i], {})}, /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  return losses;
}

}  // namespace gemini::trainer
