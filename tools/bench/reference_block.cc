// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/reference_block.h"

#include <chrono>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/randn.h"
#include "torch/types.h"
#include "trainer/forecast/traced_step.h"

namespace gemini::bench {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 256;
constexpr int64_t kWidth = 384;
constexpr int64_t kHeads = 6;
// Of the weights of products, and how often one is used: once forward, and twice backward.
constexpr int64_t kMatrixElements = 12 * kWidth * kWidth;
constexpr double kTimesForward = 3;
// Many slices of the time in which processes get a processor.
constexpr std::chrono::milliseconds kTime(1000);

class ReferenceBlock {
 public:
  explicit ReferenceBlock(torch::Device device)
      : input_(at::randn({kBatch, kSequence, kWidth}, torch::device(device))) {
    for (const auto& [out, in] : {std::pair(3 * kWidth, kWidth), std::pair(kWidth, kWidth),
                                  std::pair(4 * kWidth, kWidth), std::pair(kWidth, 4 * kWidth)}) {
      weights_.push_back((at::randn({out, in}, input_.options()) * 0.02).requires_grad_());
    }
    for (int i = 0; i < 2; ++i) {
      norms_.push_back(at::ones({kWidth}, input_.options()).requires_grad_());
    }
  }

  // Forward and backward, of one micro-batch.
  void Run() {
    Tensor x = input_.detach().requires_grad_();
    Tensor out = Forward(x);
    out.backward(at::ones_like(out));
    for (Tensor& weight : weights_) weight.mutable_grad().reset();
    for (Tensor& norm : norms_) norm.mutable_grad().reset();
  }

 private:
  Tensor Forward(const Tensor& x) const {
    std::vector<Tensor> heads;
    const Tensor joined = at::linear(at::layer_norm(x, {kWidth}, norms_[0]), weights_[0]);
    for (const Tensor& part : joined.split(kWidth, /*dim=*/-1)) {
      heads.push_back(part.unflatten(-1, {kHeads, -1}).transpose(1, 2));
    }
    // By its name, as models do: the meta device chooses another kind.
    const Tensor attended = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        heads[0], heads[1], heads[2], /*dropout_p=*/0, /*is_causal=*/true));
    const Tensor middle = x + at::linear(attended.transpose(1, 2).flatten(-2), weights_[1]);
    const Tensor inner = at::linear(at::layer_norm(middle, {kWidth}, norms_[1]), weights_[2]);
    return middle + at::linear(at::gelu(inner), weights_[3]);
  }

  const Tensor input_;
  std::vector<Tensor> weights_, norms_;
};

}  // namespace

double SecondsOfReferenceBlock() {
  ReferenceBlock block(torch::kCPU);
  block.Run();  // Memory is touched for the first time.
  int runs = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> taken(0);
  for (; taken < kTime; taken = std::chrono::steady_clock::now() - begin) {
    block.Run();
    ++runs;
  }
  return taken.count() / runs;
}

double FlopsByReferenceBlock(double seconds, const trainer::ComputeRate& other) {
  ReferenceBlock block(torch::kMeta);
  trainer::ComputeRate rate = other;
  const auto foretold = [&](double flops_per_second) {
    rate.flops_per_second = flops_per_second;
    return static_cast<double>(trainer::ForetoldKernelNs(rate, [&] { block.Run(); })) / 1e9;
  };
  // The higher the rate, the shorter the time; it lies between what all of it would say and the
  // bound of the docstring.
  const double flops =
      kTimesForward * static_cast<double>(kBatch * kSequence * kMatrixElements) * 2;
  double low = flops / seconds, high = 1000 * low;
  constexpr int kHalvings = 40;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (foretold(middle) > seconds ? low : high) = middle;
  }
  return high;
}

}  // namespace gemini::bench
