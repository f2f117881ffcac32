// SPDX-License-Identifier: Apache-2.0
// Attention on a real GPU: that of the CPU, and dropped weights that follow from the mask's key.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/torch/device/gpu_device.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/models/attention.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 192;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadSize = 64;
constexpr DropoutMask kMask = {.probability = 0.25, .key = 0xfedcba9876543210};

// Query, key, value, and the attention's gradient.
struct Inputs {
  std::vector<Tensor> in;
  Tensor grad;

  Inputs To(torch::Device device, c10::ScalarType type) const {
    Inputs copy;
    for (const Tensor& x : in) copy.in.push_back(x.to(device, type).requires_grad_());
    copy.grad = grad.to(device, type);
    return copy;
  }
};

Inputs MakeInputs(int64_t kv_heads) {
  torch::manual_seed(3);
  return {.in = {torch::randn({kBatch, kSequence, kHeads, kHeadSize}),
                 torch::randn({kBatch, kSequence, kv_heads, kHeadSize}),
                 torch::randn({kBatch, kSequence, kv_heads, kHeadSize})},
          .grad = torch::randn({kBatch, kSequence, kHeads * kHeadSize})};
}

Tensor Forward(const Inputs& inputs, const RowAttentionOptions& options) {
  return SelfAttention(inputs.in[0], inputs.in[1], inputs.in[2], {}, options);
}

// Returns the attention, and the gradients of query, key and value, in the CPU's fp32.
std::vector<Tensor> Results(const Inputs& inputs, const Tensor& out) {
  std::vector<Tensor> results = torch::autograd::grad({out}, inputs.in, {inputs.grad});
  results.insert(results.begin(), out);
  for (Tensor& result : results) result = result.detach().to(torch::kCPU, torch::kFloat32);
  return results;
}

std::vector<Tensor> Attend(const Inputs& inputs, const RowAttentionOptions& options) {
  return Results(inputs, Forward(inputs, options));
}

void ExpectEqual(const std::vector<Tensor>& one, const std::vector<Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], other[i])) << i;
}

class AttentionCudaTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_OK_AND_ASSIGN(gpu_, client::hooks::OpenGpu(0));
    // As gemini-train has it.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  static void TearDownTestSuite() { gpu_.reset(); }

  static inline std::shared_ptr<client::hooks::SessionDevice> gpu_;
};

// Heads of their own and shared ones; by Torch's kernels, in a window, and with capped scores.
// Weights are dropped where the masks are those of the CPU.
TEST_F(AttentionCudaTest, ResultsAreThoseOfTheCpu) {
  const std::vector<RowAttentionOptions> all_options = {
      {.scale = 0.1},
      {.scale = 0.1, .window = 50, .dropout = kMask},
      {.scale = 0.1, .soft_cap = 2, .dropout = kMask},
      {.scale = 0.1, .causal = false},
      {.scale = 0.1, .causal = false, .soft_cap = 2, .dropout = kMask},
  };
  for (const int64_t kv_heads : {int64_t{2}, kHeads}) {
    const Inputs inputs = MakeInputs(kv_heads);
    for (const RowAttentionOptions& options : all_options) {
      const std::vector<Tensor> expected = Attend(inputs.To(torch::kCPU, torch::kFloat32), options);
      for (const auto& [type, tolerance] :
           {std::pair{torch::kFloat32, 1e-4}, {torch::kBFloat16, 3e-2}, {torch::kHalf, 4e-3}}) {
        SCOPED_TRACE(absl::StrCat(kv_heads, " KV heads, causal ", options.causal, ", window ",
                                  options.window, ", cap ", options.soft_cap, ", ",
                                  c10::toString(type)));
        const std::vector<Tensor> found = Attend(inputs.To(gpu_->device(), type), options);
        for (size_t i = 0; i < found.size(); ++i) {
          const double error = (found[i] - expected[i]).abs().max().item<double>();
          EXPECT_LT(error, tolerance * expected[i].abs().max().item<double>()) << i;
        }
        ExpectEqual(Attend(inputs.To(gpu_->device(), type), options), found);
      }
    }
  }
}

// What runs between a forward and its backward, such as the forward of another block that is
// recomputed, takes no part in its mask.
TEST_F(AttentionCudaTest, WhatTorchsKernelsDropFollowsFromTheKeyAlone) {
  const Inputs inputs = MakeInputs(kHeads);
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    const Inputs on_gpu = inputs.To(gpu_->device(), type);
    const RowAttentionOptions options = {.scale = 0.1, .dropout = kMask};
    const std::vector<Tensor> expected = Attend(on_gpu, options);
    torch::rand({1000}, on_gpu.grad.options());
    const Tensor out = Forward(on_gpu, options);
    RowAttentionOptions other = options;
    other.dropout.key = 1;
    const std::vector<Tensor> others = Attend(on_gpu, other);
    ExpectEqual(Results(on_gpu, out), expected);
    for (size_t i = 0; i < others.size(); ++i) EXPECT_FALSE(torch::equal(others[i], expected[i]));
  }
}

// Of equal weights and of values that are one, each row's sum is the part that was kept, scaled.
TEST_F(AttentionCudaTest, TorchsKernelsDropAsManyAsTheyAreAsked) {
  const auto options = torch::device(gpu_->device()).dtype(torch::kFloat32);
  const Tensor zeros = torch::zeros({kBatch, kSequence, kHeads, kHeadSize}, options);
  const Tensor kept =
      SelfAttention(zeros, zeros, torch::ones_like(zeros), {}, {.scale = 0.1, .dropout = kMask});
  // A row has as many weights as its place says: those of the last half have 144 on average.
  const Tensor rows = kept.slice(/*dim=*/1, kSequence / 2).cpu();
  EXPECT_NEAR(rows.mean().item<double>(), 1, 0.01);
  const double expected = std::sqrt(kMask.probability / (1 - kMask.probability) / 144);
  EXPECT_NEAR(rows.std().item<double>(), expected, 0.15 * expected);
}

}  // namespace
}  // namespace gemini::trainer
