// SPDX-License-Identifier: Apache-2.0
#include "trainer/vertical_schedule.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "gemini/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "trainer/generator_state.h"

namespace gemini::trainer {
namespace {

// The input of one block for one micro-batch, and what its dropout began with.
struct Boundary {
  torch::Tensor hidden;
  torch::Tensor generator_state;
};

// Goes back to the generator's state of now at its end.
class KeepGenerator {
 public:
  KeepGenerator() : state_(GeneratorState()) {}
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;
  ~KeepGenerator() { SetGeneratorState(state_); }

 private:
  const torch::Tensor state_;
};

torch::Tensor Leaf(const torch::Tensor& hidden) { return hidden.detach().set_requires_grad(true); }

}  // namespace

absl::StatusOr<std::vector<double>> RunVertically(
    CausalLm& model, absl::Span<const torch::Tensor> micro_batches,
    absl::FunctionRef<absl::Status(int64_t micro_batch, double loss)> check) {
  const at::AutoGradMode with_graph(true);
  const size_t count = micro_batches.size();
  std::vector<torch::Tensor> embedded;  // With its graph, which holds the tokens and little else.
  std::vector<torch::Tensor> hidden;  // Of each micro-batch: the output of the last block that ran.
  for (const torch::Tensor& tokens : micro_batches) {
    embedded.push_back(model.Embed(tokens));
    hidden.push_back(embedded.back().detach());
  }

  std::vector<std::vector<Boundary>> boundaries;  // By block and micro-batch.
  {
    const at::NoGradGuard no_graph;
    for (const std::shared_ptr<Block>& block : model.blocks()) {
      std::vector<Boundary>& inputs = boundaries.emplace_back();
      for (torch::Tensor& one : hidden) {
        inputs.push_back({one, GeneratorState()});
        one = block->Forward(one);
      }
    }
  }

  std::vector<double> losses;
  for (size_t i = 0; i < count; ++i) {
    torch::Tensor leaf = Leaf(std::exchange(hidden[i], {}));
    torch::Tensor loss = ShiftedCrossEntropy(model.Head(leaf), micro_batches[i]);
    losses.push_back(loss.item<double>());
    GEMINI_RETURN_IF_ERROR(check(static_cast<int64_t>(i), losses.back()));
    if (count > 1) loss = loss / static_cast<double>(count);
    loss.backward();
    hidden[i] = leaf.grad();  // From here on: the gradient of the output of the block that is next.
  }

  const KeepGenerator keep;
  for (size_t b = boundaries.size(); b-- > 0;) {
    for (size_t i = 0; i < count; ++i) {
      Boundary input = std::exchange(boundaries[b][i], {});
      const torch::Tensor leaf = Leaf(std::exchange(input.hidden, {}));
      SetGeneratorState(input.generator_state);
      const torch::Tensor output = model.blocks()[b]->Forward(leaf);
      torch::autograd::backward({output}, {std::exchange(hidden[i], {})});
      hidden[i] = leaf.grad();
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (!embedded[i].requires_grad()) continue;  // Frozen embeddings.
    torch::autograd::backward({std::exchange(embedded[i], {})}, {std::exchange(hidden[i], {})});
  }
  return losses;
}

}  // namespace gemini::trainer
