// SPDX-License-Identifier: Apache-2.0
// What a head costs whose logits never exist whole, forward and backward: the shape of Llama 3 8B's
// and 8,192 tokens in fp32, which takes 17 GiB of memory with whole logits.
// Value:    the time by that of a linear layer and Torch's cross entropy, in the same process.
// Checked:  the loss is that of whole logits to 2e-7 of it, the gradients to 2e-6 of the largest.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/linear.h"
#include "torch/types.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/models/head_loss.h"

namespace gemini::trainer {
namespace {

using Clock = std::chrono::steady_clock;
using torch::Tensor;

constexpr int64_t kTokens = 8192, kVocabulary = 128256, kWidth = 4096;
constexpr double kMostLossError = 2e-7, kMostGradientError = 2e-6;

struct Inputs {
  Tensor hidden;
  Tensor labels;
  std::vector<Tensor> blocks;
};

struct Outputs {
  double loss = 0;
  double seconds = 0;
  Tensor hidden_gradient;
};

// The same values however many blocks there are.
Inputs Make(const VocabularyCut& cut) {
  torch::manual_seed(1);
  Inputs in;
  in.hidden = torch::randn({kTokens, kWidth}).set_requires_grad(true);
  in.labels = torch::randint(0, kVocabulary, {kTokens}, torch::kInt64);
  for (int64_t i = 0; i < cut.num_blocks(); ++i) {
    in.blocks.push_back(torch::empty({cut.first_row(i + 1) - cut.first_row(i), kWidth}));
    // Row by row, so that no row's values depend on the cut.
    for (int64_t row = 0; row < in.blocks[i].size(0); ++row) in.blocks[i][row].normal_(0, 0.02);
    in.blocks[i].set_requires_grad(true);
  }
  return in;
}

template <typename Loss>
Outputs Run(const Inputs& in, Loss loss) {
  Outputs out;
  const Clock::time_point begin = Clock::now();
  Tensor mean = loss(in);
  mean.backward();
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out.loss = mean.item<double>();
  out.hidden_gradient = in.hidden.grad();
  return out;
}

Tensor WholeLogits(const Inputs& in) {
  return at::cross_entropy_loss(at::linear(in.hidden, in.blocks[0]), in.labels);
}

double Error(const Tensor& ours, const Tensor& theirs) {
  return (ours - theirs).abs().max().item<double>() / theirs.abs().max().item<double>();
}

void RunHead(benchmark::State& state, int64_t num_blocks) {
  const VocabularyCut pieces = CutIntoPieces(kVocabulary, kWidth);
  const VocabularyCut cut = CutIntoBlocks(pieces, num_blocks);
  for (auto _ : state) {
    Inputs in = Make(cut);
    const Outputs ours = Run(in, [&](const Inputs& of) {
      return HeadLoss(of.hidden, of.labels, of.blocks, {.cut = cut}, 1.0 / kTokens) / kTokens;
    });
    std::vector<Tensor> gradients;
    for (const Tensor& block : in.blocks) gradients.push_back(block.grad());
    in = Inputs();
    const Inputs plain = Make(pieces);
    const Outputs whole = Run(plain, WholeLogits);
    const double loss_error = std::abs(ours.loss - whole.loss) / whole.loss;
    double gradient_error = Error(ours.hidden_gradient, whole.hidden_gradient);
    const double largest = plain.blocks[0].grad().abs().max().item<double>();
    for (int64_t i = 0; i < cut.num_blocks(); ++i) {
      const Tensor expected =
          plain.blocks[0].grad().slice(0, cut.first_row(i), cut.first_row(i + 1));
      const double error = (gradients[i] - expected).abs().max().item<double>() / largest;
      gradient_error = std::max(gradient_error, error);
    }
    state.SetIterationTime(ours.seconds);
    state.counters["value"] = ours.seconds / whole.seconds;
    state.counters["baseline"] = whole.seconds;
    state.counters["checked"] =
        loss_error <= kMostLossError && gradient_error <= kMostGradientError ? 1 : 0;
    state.counters["seconds"] = ours.seconds;
    state.counters["loss_error"] = loss_error;
    state.counters["gradient_error"] = gradient_error;
  }
}

void head_time_whole(benchmark::State& state) { RunHead(state, 1); }
void head_time_blocks(benchmark::State& state) { RunHead(state, 16); }
BENCHMARK(head_time_whole)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(head_time_blocks)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace gemini::trainer
