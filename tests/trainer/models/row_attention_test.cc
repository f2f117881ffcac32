// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/row_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "client/torch/device/vector_math.h"
#include "gmock/gmock.h"
#include "torch/torch.h"
#include "trainer/models/counter_dropout.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

// Three pieces of rows, of which the last is not whole.
constexpr int64_t kSequence = 300;
constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadSize = 8;

struct Inputs {
  Tensor query, key, value;
  // What the sum of the output's elements is weighted by.
  Tensor weight;
};

Inputs MakeInputs(torch::Dtype type) {
  client::hooks::ResolveVectorMath();
  torch::manual_seed(1);
  const auto make = [type](int64_t heads) {
    // As SelfAttention passes them: the sequence before the heads in memory.
    return torch::randn({kBatch, kSequence, heads, kHeadSize})
        .to(type)
        .transpose(1, 2)
        .detach()
        .set_requires_grad(true);
  };
  Inputs inputs = {make(kHeads), make(kKvHeads), make(kKvHeads), {}};
  inputs.weight = torch::randn({kBatch, kHeads, kSequence, kHeadSize}).to(type);
  return inputs;
}

// Returns the number of each token's document, [batch, sequence]; 0 for padding.
Tensor DocumentNumbers(const RowDocuments& documents) {
  Tensor numbers = torch::zeros({kBatch, kSequence}, torch::kInt64);
  for (int64_t row = 0; row < kBatch; ++row) {
    int64_t begin = 0, number = 0;
    for (const int64_t length : documents.lengths[static_cast<size_t>(row)]) {
      numbers[row].slice(0, begin, begin + length).fill_(++number);
      begin += length;
    }
  }
  return numbers;
}

// All scores at once, in the inputs' type.
Tensor WholeAttention(const Inputs& inputs, const RowAttentionOptions& options,
                      const Tensor& dropout_factors = torch::ones({1})) {
  const int64_t share = kHeads / kKvHeads;
  Tensor scores =
      inputs.query.matmul(inputs.key.repeat_interleave(share, 1).transpose(2, 3)) * options.scale;
  if (options.soft_cap > 0) scores = torch::tanh(scores / options.soft_cap) * options.soft_cap;
  const Tensor place = torch::arange(kSequence);
  const Tensor distance = place.unsqueeze(1) - place;  // From a row back to a key.
  Tensor hidden = options.causal ? distance < 0 : torch::zeros_like(distance, torch::kBool);
  if (options.window > 0) hidden = hidden | (distance >= options.window);
  Tensor factors = dropout_factors.to(scores.scalar_type());
  if (options.documents != nullptr) {
    const Tensor numbers = DocumentNumbers(*options.documents).unsqueeze(1);
    hidden = hidden | (numbers.unsqueeze(-1) != numbers.unsqueeze(-2));
    factors = factors * (numbers > 0).unsqueeze(-1);
  }
  scores = scores.masked_fill(hidden, -INFINITY);
  return (torch::softmax(scores, -1) * factors).matmul(inputs.value.repeat_interleave(share, 1));
}

std::vector<Tensor> OutputAndGradients(const Inputs& inputs, const Tensor& out) {
  std::vector<Tensor> all = {out.detach()};
  for (const Tensor& grad : torch::autograd::grad({(out * inputs.weight).sum()},
                                                  {inputs.query, inputs.key, inputs.value})) {
    all.push_back(grad);
  }
  return all;
}

// Relative to the largest element, or to 1: a row that sees one key has gradients of 0.
double LargestError(const Tensor& ours, const Tensor& expected) {
  return (ours.to(torch::kFloat64) - expected.to(torch::kFloat64)).abs().max().item<double>() /
         std::max(expected.abs().max().item<double>(), 1.0);
}

struct RowCase {
  const char* name;
  RowAttentionOptions options;
};
class RowAttentionTest : public ::testing::TestWithParam<RowCase> {};
INSTANTIATE_TEST_SUITE_P(Options, RowAttentionTest,
                         ::testing::ValuesIn(std::vector<RowCase>{
                             {"All", {.scale = 0.35}},
                             {"WindowOfOne", {.scale = 0.35, .window = 1}},
                             {"ShortWindow", {.scale = 0.35, .window = 70}},
                             {"WindowOverPieces", {.scale = 0.35, .window = 200}},
                             {"SoftCap", {.scale = 0.9, .soft_cap = 2}},
                             {"SoftCapInAWindow", {.scale = 0.9, .window = 129, .soft_cap = 1.5}},
                             {"NotCausal", {.scale = 0.35, .causal = false}},
                             {"NotCausalSoftCap", {.scale = 0.9, .causal = false, .soft_cap = 2}},
                         }),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(RowAttentionTest, OutputAndGradientsAreThoseOfAllScoresAtOnce) {
  const RowAttentionOptions& options = GetParam().options;
  const Inputs inputs = MakeInputs(torch::kFloat32);
  const std::vector<Tensor> ours =
      OutputAndGradients(inputs, RowAttention(inputs.query, inputs.key, inputs.value, options));
  const std::vector<Tensor> expected = OutputAndGradients(inputs, WholeAttention(inputs, options));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(ours[i].sizes(), expected[i].sizes());
    EXPECT_LE(LargestError(ours[i], expected[i]), 3e-6) << i;
  }
}

// Documents longer and shorter than a piece, and padding.
SharedDocuments SomeDocuments() {
  return std::make_shared<RowDocuments>(RowDocuments{{{140, 3, 100, 57}, {200, 1}}});
}

TEST_P(RowAttentionTest, DocumentsAndPaddingAreApart) {
  RowAttentionOptions options = GetParam().options;
  options.documents = SomeDocuments();
  const Inputs inputs = MakeInputs(torch::kFloat32);
  const std::vector<Tensor> ours =
      OutputAndGradients(inputs, RowAttention(inputs.query, inputs.key, inputs.value, options));
  const std::vector<Tensor> expected = OutputAndGradients(inputs, WholeAttention(inputs, options));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(LargestError(ours[i], expected[i]), 3e-6) << i;
    // Exactly: of what is no part of it nothing reaches padding.
    EXPECT_EQ(ours[i][1].slice(1, 201).abs().max().item<double>(), 0) << i;
  }
  // The same bits as alone, where its pieces begin where it does.
  options.documents = nullptr;
  const auto second = [](const Tensor& x) { return x.slice(0, 0, 1).slice(2, 143, 243); };
  const Tensor alone =
      RowAttention(second(inputs.query), second(inputs.key), second(inputs.value), options);
  EXPECT_TRUE(torch::equal(second(ours[0]), alone));
}

// As near as Torch's own kernel, whose products and sums are fp32, too. Scores are up to 40, where
// one that is rounded to bf16 is off by 0.1.
TEST_P(RowAttentionTest, SixteenBitsAreAsNearAsTheFusedKernel) {
  RowAttentionOptions options = GetParam().options;
  options.scale = 4;
  options.soft_cap = 0;
  for (const torch::Dtype type : {torch::kBFloat16, torch::kFloat16}) {
    const Inputs inputs = MakeInputs(type);
    const Inputs exact = {inputs.query.detach().to(torch::kFloat64).set_requires_grad(true),
                          inputs.key.detach().to(torch::kFloat64).set_requires_grad(true),
                          inputs.value.detach().to(torch::kFloat64).set_requires_grad(true),
                          inputs.weight.to(torch::kFloat64)};
    const std::vector<Tensor> expected = OutputAndGradients(exact, WholeAttention(exact, options));
    const std::vector<Tensor> ours =
        OutputAndGradients(inputs, RowAttention(inputs.query, inputs.key, inputs.value, options));
    const int64_t window = options.window == 0 ? kSequence : options.window;
    const Tensor all = at::ones({kSequence, kSequence}, torch::kBool);
    const Tensor seen = options.causal ? all.tril().triu(1 - window) : all;
    const std::vector<Tensor> fused = OutputAndGradients(
        inputs, at::scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, seen, 0,
                                                 false, options.scale, true));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), type);
      EXPECT_LE(LargestError(ours[i], expected[i]), 2 * LargestError(fused[i], expected[i]))
          << type << " " << i;
    }
  }
}

TEST_P(RowAttentionTest, ASequenceHasTheSameBitsInAnyBatch) {
  const RowAttentionOptions& options = GetParam().options;
  const Inputs inputs = MakeInputs(torch::kFloat32);
  const Tensor both = RowAttention(inputs.query, inputs.key, inputs.value, options);
  const Tensor second = RowAttention(inputs.query.slice(0, 1), inputs.key.slice(0, 1),
                                     inputs.value.slice(0, 1), options);
  EXPECT_TRUE(torch::equal(both.slice(0, 1), second));
}

// What Torch has allocated on the CPU since this was made.
class AllocatedBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    now_ += size;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

int64_t PeakOf(const std::function<Tensor()>& forward) {
  const auto bytes = std::make_shared<AllocatedBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  forward().sum().backward();
  return bytes->peak();
}

TEST(RowAttentionMemoryTest, AWindowTakesNoMaskOfTheWholeSequence) {
  constexpr int64_t kLong = 4096;
  constexpr int64_t kWindow = 256;
  const Tensor x = torch::randn({1, 2, kLong, 32}).set_requires_grad(true);
  const Tensor mask = at::ones({kLong, kLong}, torch::kBool).tril().triu(1 - kWindow);
  const int64_t masked =
      PeakOf([&] { return at::scaled_dot_product_attention(x, x, x, mask) + 0.0; });
  const int64_t by_rows =
      PeakOf([&] { return RowAttention(x, x, x, {.scale = 0.1, .window = kWindow}); });
  EXPECT_GT(by_rows, x.nbytes());
  EXPECT_LE(by_rows, masked / 8) << masked;
}

TEST(RowAttentionDropoutTest, ItsShareOfTheWeightsIsDroppedAndTheOthersGrow) {
  // With a window of one key each row has one weight, which is 1.
  const Tensor value = torch::ones({8, 4, 500, 1});
  const Tensor out =
      RowAttention(value, value, value, {.scale = 1, .window = 1, .dropout = {.probability = 0.2}});
  EXPECT_NEAR((out == 0).to(torch::kFloat32).mean().item<double>(), 0.2, 0.02);
  EXPECT_TRUE(torch::allclose(out.masked_select(out != 0), torch::full({1}, 1.25)));
}

TEST(RowAttentionWindowTest, OneOfWhatIsNotCausalIsRefused) {
  const Tensor x = torch::randn({1, 1, 4, 2});
  EXPECT_THROW(RowAttention(x, x, x, {.causal = false, .window = 2}), c10::Error);
}

TEST(RowAttentionDerivativeTest, ASecondOneIsRefused) {
  const Tensor x = torch::randn({1, 1, 4, 2}).set_requires_grad(true);
  const Tensor out = RowAttention(x, x, x, {.scale = 1, .window = 2}).sum();
  EXPECT_THROW(torch::autograd::grad({out}, {x}, {}, true, /*create_graph=*/true), c10::Error);
}

// The weights of a piece have their places among all weights, so that pieces change no mask.
TEST_P(RowAttentionTest, DropsTheWeightsThatOneMaskOfAllDrops) {
  RowAttentionOptions options = GetParam().options;
  const Inputs inputs = MakeInputs(torch::kFloat32);
  options.dropout = {.probability = 0.4, .key = uint64_t{1} << 63};
  const torch::NoGradGuard no_grad;
  const Tensor factors = torch::empty({kBatch, kHeads, kSequence, kSequence});
  FillFactors(options.dropout, {.row_size = factors.numel()}, factors);
  for (const SharedDocuments& documents : {SharedDocuments(), SomeDocuments()}) {
    options.documents = documents;
    const Tensor expected = WholeAttention(inputs, options, factors);
    const Tensor found = RowAttention(inputs.query, inputs.key, inputs.value, options);
    EXPECT_TRUE(torch::allclose(found, expected, 1e-4, 1e-5)) << (found - expected).abs().max();
  }
}

// With dropout the output is linear in the values, and smooth in the query and the key as long as
// the same weights are dropped. So the gradient must be that of the forward's own draw.
TEST_P(RowAttentionTest, BackwardDropsTheWeightsThatForwardDropped) {
  RowAttentionOptions options = GetParam().options;
  options.dropout = {.probability = 0.4, .key = 5};
  const Inputs inputs = MakeInputs(torch::kFloat32);
  const auto sum = [&](const Tensor& query, const Tensor& key) {
    return (RowAttention(query, key, inputs.value, options) * inputs.weight)
        .to(torch::kFloat64)
        .sum();
  };
  const Tensor out = sum(inputs.query, inputs.key);
  const auto grads = torch::autograd::grad({out}, {inputs.query, inputs.key, inputs.value});
  EXPECT_NEAR((grads[2] * inputs.value).sum().item<double>(), out.item<double>(),
              1e-4 * std::abs(out.item<double>()) + 1e-3);

  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < 2; ++i) {
    if (options.window == 1) {  // One weight of 1, whatever the score is.
      EXPECT_LE(grads[i].abs().max().item<double>(), 1e-4);
      continue;
    }
    const Tensor& moved = i == 0 ? inputs.query : inputs.key;
    const Tensor by = grads[i] / grads[i].norm() * 0.05;
    const auto at = [&](const Tensor& x) {
      return (i == 0 ? sum(x, inputs.key) : sum(inputs.query, x)).item<double>();
    };
    const double slope = at(moved + by) - at(moved - by);
    const double expected = 2 * 0.05 * grads[i].norm().item<double>();
    EXPECT_NEAR(slope, expected, 0.02 * expected) << i;
  }
}

}  // namespace
}  // namespace gemini::trainer
