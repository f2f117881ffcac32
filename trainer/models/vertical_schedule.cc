// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/vertical_schedule.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/edge.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/variable.h"

namespace gemini::trainer {
namespace {

// The input of one block for one micro-batch.
struct Boundary {
  int64_t hidden = 0;  // In the activation store.
  torch::Tensor router_sums;
};

torch::Tensor Leaf(const torch::Tensor& tensor) { return tensor.detach().set_requires_grad(true); }

// A stream whose tensors are inputs of a graph of their own.
Stream Leaves(const Stream& stream) {
  return {.hidden = Leaf(stream.hidden),
          .router_sums = stream.router_sums.defined() ? Leaf(stream.router_sums) : torch::Tensor()};
}

// Their gradients, after backward.
Stream GradientsOf(const Stream& leaves) {
  return {
      .hidden = leaves.hidden.grad(),
      .router_sums = leaves.router_sums.defined() ? leaves.router_sums.grad() : torch::Tensor()};
}

void Backward(const Stream& output, const Stream& gradients) {
  torch::autograd::variable_list roots = {output.hidden}, grads = {gradients.hidden};
  if (output.router_sums.defined()) {
    roots.push_back(output.router_sums);
    grads.push_back(gradients.router_sums);
  }
  torch::autograd::backward(roots, grads);
}

}  // namespace

absl::StatusOr<std::vector<LossValues>> RunVertically(
    StagedModel& model, absl::Span<const Batch> micro_batches, ActivationStore& activations,
    absl::FunctionRef<absl::Status(int64_t micro_batch, double loss)> check,
    const LossFactors& factors) {
  const at::AutoGradMode with_graph(true);
  const size_t count = micro_batches.size();
  // Where backward enters the graph of each embedding, which holds the tokens and little else; that
  // of an encoder also holds what its norm read, which no forecast counts. The tensor itself would
  // keep the memory that the store believes to have freed.
  std::vector<torch::autograd::Edge> embeddings;
  std::vector<Stream> streams;  // By micro-batch: the output of the last block that ran.
  std::vector<BatchContext> contexts;
  const size_t num_blocks = model.blocks().size();
  DropoutDraw draw = model.dropout_draw();
  model.BeginMicroBatches(static_cast<int64_t>(count));
  model.HoldStage(0);
  for (const Batch& batch : micro_batches) {
    model.set_dropout_draw(draw);
    ++draw.micro_batch;
    model.set_documents(batch.documents);
    const torch::Tensor embedded = model.Embed(batch);
    // Frozen embeddings have no graph.
    embeddings.push_back(embedded.requires_grad() ? torch::autograd::impl::gradient_edge(embedded)
                                                  : torch::autograd::Edge());
    const torch::Tensor& hidden = streams.emplace_back(Stream{embedded.detach()}).hidden;
    // But for dropout it depends on the documents and on the length alone, so micro-batches of one
    // length share it.
    const bool shared = !contexts.empty() && batch.documents == contexts.front().documents &&
                        hidden.size(1) == streams.front().hidden.size(1);
    contexts.push_back(shared ? contexts.front() : model.ContextOf(hidden));
    contexts.back().dropout = model.dropout();
  }
  model.ReleaseStage(0);

  std::vector<Boundary> boundaries;  // Block after block, of each the micro-batches in their order.
  {
    const at::NoGradGuard no_graph;
    for (size_t b = 0; b < num_blocks; ++b) {
      model.HoldStage(b + 1);
      for (size_t i = 0; i < count; ++i) {
        Boundary& input = boundaries.emplace_back();
        input.router_sums = streams[i].router_sums;
        Stream output = model.blocks()[b]->Forward(streams[i], contexts[i]);
        GEMINI_ASSIGN_OR_RETURN(
            input.hidden, activations.Put(std::exchange(streams[i], std::move(output)).hidden));
      }
      model.ReleaseStage(b + 1);
    }
  }

  std::vector<LossValues> losses;
  model.HoldStage(num_blocks + 1);
  for (size_t i = 0; i < count; ++i) {
    model.set_last_micro_batch(i + 1 == count);
    const Stream leaves = Leaves(std::exchange(streams[i], {}));
    const BatchLoss loss = model.LossOf(leaves, contexts[i], micro_batches[i].labels, factors);
    losses.push_back(loss.Values());
    GEMINI_RETURN_IF_ERROR(check(static_cast<int64_t>(i), losses.back().total));
    loss.Backward(factors);
    // From here on: the gradients of the output of the block that is next.
    streams[i] = GradientsOf(leaves);
  }
  model.ReleaseStage(num_blocks + 1);

  for (size_t b = num_blocks; b-- > 0;) {
    model.HoldStage(b + 1);
    for (size_t i = 0; i < count; ++i) {
      model.set_last_micro_batch(i + 1 == count);
      const Boundary& input = boundaries[b * count + i];
      GEMINI_ASSIGN_OR_RETURN(const torch::Tensor saved, activations.Take(input.hidden));
      // The next one comes back while this one is computed with.
      if (i + 1 < count) {
        GEMINI_RETURN_IF_ERROR(activations.Prefetch(boundaries[b * count + i + 1].hidden));
      } else if (b > 0) {
        GEMINI_RETURN_IF_ERROR(activations.Prefetch(boundaries[(b - 1) * count].hidden));
      }
      const Stream leaves = Leaves({.hidden = saved, .router_sums = input.router_sums});
      const Stream output = model.blocks()[b]->ForwardAgain(leaves, contexts[i]);
      Backward(output, std::exchange(streams[i], {}));
      streams[i] = GradientsOf(leaves);
    }
    model.ReleaseStage(b + 1);
  }
  // Not held: a look-up needs nothing of the table. A projected one has its matrix gathered again.
  for (size_t i = 0; i < count; ++i) {
    model.set_last_micro_batch(i + 1 == count);
    if (!embeddings[i].is_valid()) continue;
    torch::autograd::Engine::get_default_engine().execute(
        {std::exchange(embeddings[i], {})}, {std::exchange(streams[i], {}).hidden},
        /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  return losses;
}

}  // namespace gemini::trainer
