// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/reference_block.h"

#include <chrono>
#include <vector>

#include "ATen/ops/gelu.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "policies/mesh/mesh.h"
#include "policies/scaling/model_sizes.h"
#include "policies/scaling/parallel_run.h"
#include "policies/scaling/rank_groups.h"
#include "policies/scaling/unit_cost.h"
#include "torch/types.h"

namespace gemini::bench {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 256;
constexpr int64_t kWidth = 384;
constexpr int64_t kHeads = 6;
// Many slices of the time in which processes get a processor.
constexpr std::chrono::milliseconds kTime(1000);

class ReferenceBlock {
 public:
  ReferenceBlock() {
    for (const auto& [out, in] : {std::pair(3 * kWidth, kWidth), std::pair(kWidth, kWidth),
                                  std::pair(4 * kWidth, kWidth), std::pair(kWidth, 4 * kWidth)}) {
      weights_.push_back((at::randn({out, in}) * 0.02).requires_grad_());
    }
    for (int i = 0; i < 2; ++i) norms_.push_back(at::ones({kWidth}).requires_grad_());
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
    const Tensor attended = at::scaled_dot_product_attention(
        heads[0], heads[1], heads[2], /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true);
    const Tensor middle = x + at::linear(attended.transpose(1, 2).flatten(-2), weights_[1]);
    const Tensor inner = at::linear(at::layer_norm(middle, {kWidth}, norms_[1]), weights_[2]);
    return middle + at::linear(at::gelu(inner), weights_[3]);
  }

  const Tensor input_ = at::randn({kBatch, kSequence, kWidth});
  std::vector<Tensor> weights_, norms_;
};

}  // namespace

double SecondsOfReferenceBlock() {
  ReferenceBlock block;
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
  const policies::ModelSizes sizes = policies::SizesOf(policies::GptShape{
      .num_blocks = 1, .width = kWidth, .num_heads = kHeads, .sequence = kSequence});
  const policies::ParallelRun run = {.mesh = *policies::Mesh::Make(1, {}),
                                     .sequence = kSequence,
                                     .batch = kBatch,
                                     .activation_bytes = sizeof(float)};
  const policies::RankGroups groups = GroupsOf(run.mesh, run.grid, /*ranks_per_node=*/1);
  const double flops =
      3 * sizes.blocks.front().flops_of_token() * static_cast<double>(kBatch * kSequence);
  const auto foretold = [&](double flops_per_second) {
    const policies::RankMachine machine = {
        .flops_per_second = flops_per_second,
        .memory_bytes_per_second = other.memory_bytes_per_second,
        .kernel_seconds = static_cast<double>(other.kernel_ns) / 1e9,
        .network = {.within = {0, 1}, .between = {0, 1}}};
    const policies::UnitCost cost =
        CostOfBlock(sizes.blocks.front(), sizes.width, run, machine, groups);
    return cost.forward.seconds() + cost.backward.seconds();
  };
  // The higher the rate, the shorter the time; it lies between what all of it would say and the
  // bound of the docstring.
  double low = flops / seconds, high = 1000 * low;
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (foretold(middle) > seconds ? low : high) = middle;
  }
  return high;
}

}  // namespace gemini::bench
