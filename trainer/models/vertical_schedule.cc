// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/vertical_schedule.h"

#include <optional>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/edge.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/variable.h"

namespace gemini::trainer {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

// The input of one block for one micro-batch. The keys are those of the activation store.
struct Boundary {
  int64_t hidden = 0;
  std::optional<int64_t> pair;  // Put behind the hidden tensor, and so taken before it.
  torch::Tensor router_sums;    // Too small to be moved.
};

absl::StatusOr<Boundary> Put(Stream stream, ActivationStore& activations) {
  Boundary boundary;
  boundary.router_sums = std::move(stream.router_sums);
  GEMINI_ASSIGN_OR_RETURN(boundary.hidden, activations.Put(std::move(stream.hidden)));
  if (!stream.pair.defined()) return boundary;
  GEMINI_ASSIGN_OR_RETURN(boundary.pair, activations.Put(std::move(stream.pair)));
  return boundary;
}

absl::Status Prefetch(const Boundary& boundary, ActivationStore& activations) {
  if (boundary.pair.has_value()) {
    GEMINI_RETURN_IF_ERROR(activations.Prefetch(*boundary.pair));
  }
  return activations.Prefetch(boundary.hidden);
}

absl::StatusOr<Stream> Take(const Boundary& boundary, ActivationStore& activations) {
  Stream stream;
  stream.router_sums = boundary.router_sums;
  if (boundary.pair.has_value()) {
    GEMINI_ASSIGN_OR_RETURN(stream.pair, activations.Take(*boundary.pair));
  }
  GEMINI_ASSIGN_OR_RETURN(stream.hidden, activations.Take(boundary.hidden));
  return stream;
}

// Where backward enters the graph of each tensor of an embedding. A frozen one has none there.
std::vector<Edge> EdgesOf(const Stream& embedded) {
  std::vector<Edge> edges;
  for (const torch::Tensor& tensor : TensorsOf(embedded)) {
    edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : Edge());
  }
  return edges;
}

void Backward(const Stream& output, const Stream& gradients) {
  torch::autograd::backward(TensorsOf(output), TensorsOf(gradients));
}

void Backward(const std::vector<Edge>& embedding, const Stream& gradients) {
  const variable_list of_tensors = TensorsOf(gradients);
  std::vector<Edge> roots;
  variable_list grads;
  for (size_t i = 0; i < embedding.size(); ++i) {
    if (!embedding[i].is_valid()) continue;
    roots.push_back(embedding[i]);
    grads.push_back(of_tensors[i]);
  }
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
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
  std::vector<std::vector<Edge>> embeddings;
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
    const Stream embedded = model.Embed(batch);
    embeddings.push_back(EdgesOf(embedded));
    const torch::Tensor& hidden = streams.emplace_back(Detached(embedded)).hidden;
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
        Stream output = model.blocks()[b]->Forward(streams[i], contexts[i]);
        GEMINI_ASSIGN_OR_RETURN(boundaries.emplace_back(),
                                Put(std::exchange(streams[i], std::move(output)), activations));
      }
      model.ReleaseStage(b + 1);
    }
  }

  std::vector<LossValues> losses;
  model.HoldStage(num_blocks + 1);
  for (size_t i = 0; i < count; ++i) {
    model.set_last_micro_batch(i + 1 == count);
    const Stream leaves = LeavesOf(std::exchange(streams[i], {}));
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
      GEMINI_ASSIGN_OR_RETURN(const Stream saved, Take(boundaries[b * count + i], activations));
      // The next one comes back while this one is computed with.
      if (i + 1 < count) {
        GEMINI_RETURN_IF_ERROR(Prefetch(boundaries[b * count + i + 1], activations));
      } else if (b > 0) {
        GEMINI_RETURN_IF_ERROR(Prefetch(boundaries[(b - 1) * count], activations));
      }
      const Stream leaves = LeavesOf(saved);
      const Stream output = model.blocks()[b]->ForwardAgain(leaves, contexts[i]);
      Backward(output, std::exchange(streams[i], {}));
      streams[i] = GradientsOf(leaves);
    }
    model.ReleaseStage(b + 1);
  }
  // Not held: a look-up needs nothing of the table. A projected one has its matrix gathered again.
  for (size_t i = 0; i < count; ++i) {
    model.set_last_micro_batch(i + 1 == count);
    Backward(std::exchange(embeddings[i], {}), std::exchange(streams[i], {}));
  }
  return losses;
}

}  // namespace gemini::trainer
