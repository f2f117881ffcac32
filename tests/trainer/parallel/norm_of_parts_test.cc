// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/norm_of_parts.h"

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kSequences = 2, kTokens = 4, kWidth = 32;

Tensor Random(at::IntArrayRef sizes, uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::kFloat64);
}

struct Norm {
  const char* name;
  NormSpec spec;
};

// What goes in, and what backward is given, of one type.
struct Values {
  Tensor x;  // [sequences, tokens, elements]
  Tensor weight;
  Tensor bias;
  Tensor slope;

  Values In(torch::ScalarType type) const {
    const auto in = [&](const Tensor& one) { return one.defined() ? one.to(type) : one; };
    return {in(x), in(weight), in(bias), in(slope)};
  }
  // Of the elements that the rank at a place has.
  Values PartOf(const RankLine& line) const {
    const auto part = [&](const Tensor& one) {
      if (!one.defined()) return one;
      return one.chunk(line.size(), -1)[static_cast<size_t>(line.place())].contiguous();
    };
    return {part(x), part(weight), part(bias), part(slope)};
  }
  std::vector<Tensor> Leaves() {
    std::vector<Tensor> leaves;
    for (Tensor* const one : {&x, &weight, &bias}) {
      if (one->defined()) leaves.push_back(one->requires_grad_());
    }
    return leaves;
  }
};

Values ValuesOf(const NormSpec& norm, double mean) {
  Values values = {.x = Random({kSequences, kTokens, kWidth}, 1) + mean,
                   .weight = {},
                   .bias = {},
                   .slope = Random({kSequences, kTokens, kWidth}, 2)};
  if (norm.affine) values.weight = Random({kWidth}, 3);
  if (norm.affine && norm.kind == NormKind::kLayer && norm.bias) values.bias = Random({kWidth}, 4);
  return values;
}

// By Torch's own operators.
Tensor WholeNorm(const Values& in, const NormSpec& norm) {
  if (norm.kind == NormKind::kLayer) {
    return torch::layer_norm(in.x, {in.x.size(-1)}, in.weight, in.bias, norm.epsilon);
  }
  const Tensor normed = in.x * (in.x.square().mean(-1, true) + norm.epsilon).rsqrt();
  return in.weight.defined() ? normed * (norm.adds_one ? in.weight + 1 : in.weight) : normed;
}

// Compares results and gradients of values that are rounded to `type` with those of fp64.
void ExpectTheWholeNorm(const NormSpec& norm, double mean, int64_t num_ranks,
                        torch::ScalarType type, double bar) {
  const Values rounded = ValuesOf(norm, mean).In(type);
  Values whole = rounded.In(torch::kFloat64);
  const std::vector<Tensor> leaves = whole.Leaves();
  const Tensor expected = WholeNorm(whole, norm);
  const std::vector<Tensor> gradients = torch::autograd::grad({expected}, leaves, {whole.slope});
  RunThreadRanks(num_ranks, [&](Communicator& me) {
    const RankLine line = {&me, &me.world()};
    const auto compare = [&](const Tensor& own, const Tensor& all, const char* what) {
      const Tensor part = all.chunk(line.size(), -1)[static_cast<size_t>(line.place())];
      const double difference = (own.to(torch::kFloat64) - part).abs().max().item<double>();
      EXPECT_LE(difference, bar * all.abs().max().item<double>()) << what;
    };
    Values own = rounded.PartOf(line);
    const std::vector<Tensor> own_leaves = own.Leaves();
    const Tensor normed = NormOfParts(own.x, own.weight, own.bias, norm, line);
    ASSERT_EQ(normed.scalar_type(), type);
    compare(normed, expected.detach(), "result");
    const std::vector<Tensor> own_gradients =
        torch::autograd::grad({normed}, own_leaves, {own.slope});
    for (size_t i = 0; i < own_gradients.size(); ++i) {
      compare(own_gradients[i], gradients[i], i == 0 ? "input" : "weight or bias");
    }
  });
}

class NormOfPartsTest : public ::testing::TestWithParam<std::tuple<Norm, int>> {};

TEST_P(NormOfPartsTest, ResultAndGradientsAreThoseOfTheWhole) {
  const auto& [norm, num_ranks] = GetParam();
  ExpectTheWholeNorm(norm.spec, /*mean=*/0.5, num_ranks, torch::kFloat64, 1e-13);
  ExpectTheWholeNorm(norm.spec, /*mean=*/0.5, num_ranks, torch::kFloat32, 2e-6);
  ExpectTheWholeNorm(norm.spec, /*mean=*/0.5, num_ranks, torch::kBFloat16, 1.0 / 128);
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Norm, int>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Norms, NormOfPartsTest,
    ::testing::Combine(
        ::testing::Values(Norm{"layer", {}}, Norm{"layer_without_bias", {.bias = false}},
                          Norm{"layer_without_weight", {.affine = false}},
                          Norm{"rms", {.kind = NormKind::kRms}},
                          Norm{"rms_adds_one", {.kind = NormKind::kRms, .adds_one = true}}),
        ::testing::Values(1, 2, 4)),
    NameOf);

// Elements that differ by 1 have a mean of 1000: squares less the squared mean would have lost a
// twentieth of their variance to rounding. What remains is the rounding of the mean, 2^-15.
TEST(NormOfLargeValuesTest, NothingCancels) {
  ExpectTheWholeNorm({}, /*mean=*/1000, 4, torch::kFloat32, 2e-4);
}

// Two numbers a token either way, of an RMS norm one, in fp32.
TEST(NormOfPartsBytesTest, AFewNumbersOfATokenAreSent) {
  for (const auto& [kind, numbers] :
       {std::pair(NormKind::kLayer, int64_t{2}), std::pair(NormKind::kRms, int64_t{1})}) {
    const NormSpec norm = {.kind = kind};
    const Values values = ValuesOf(norm, 0).In(torch::kFloat32);
    RunThreadRanks(4, [&, numbers = numbers](Communicator& me) {
      const RankLine line = {&me, &me.world()};
      Values own = values.PartOf(line);
      own.Leaves();
      NormOfParts(own.x, own.weight, own.bias, norm, line).sum().backward();
      std::map<std::string, int64_t> sent;
      for (const SentBytes& one : me.sent()) sent[one.site] += one.bytes;
      const int64_t bytes = numbers * kSequences * kTokens * static_cast<int64_t>(sizeof(float));
      // A sum is scattered and gathered.
      EXPECT_EQ(sent, (std::map<std::string, int64_t>{{"norm", 3 * bytes},
                                                      {"norm gradients", 2 * 3 * bytes / 4}}));
    });
  }
}

}  // namespace
}  // namespace gemini::trainer
