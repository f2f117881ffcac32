// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/transformer_trace.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 16;
constexpr int64_t kHidden = 64;
constexpr int64_t kHeads = 4;
constexpr int64_t kTokens = kBatch * kSequence;

TransformerShape Shape(int64_t layers) {
  return {.num_layers = layers,
          .hidden = kHidden,
          .num_heads = kHeads,
          .inner = 4 * kHidden,
          .vocabulary = 300,
          .num_positions = 32,
          .embedding_size = kHidden};
}

RoundShape Round() {
  return {.batch = kBatch, .sequence = kSequence, .element = ElementType::kBf16};
}

int64_t PeakOf(const Trace& trace) {
  int64_t peak = 0;
  for (const TracedOperator& at : trace.operators) peak = std::max(peak, at.non_model_peak_bytes);
  return peak;
}

int64_t PeakAt(const TransformerTrace& made, const std::string& name) {
  const auto found = std::ranges::find(made.operator_names, name);
  EXPECT_NE(found, made.operator_names.end()) << name;
  return made.trace.operators[found - made.operator_names.begin()].non_model_peak_bytes;
}

int64_t ComputeNs(const Trace& trace) {
  int64_t sum = 0;
  for (const TracedOperator& at : trace.operators) sum += at.compute_ns;
  return sum;
}

TEST(TransformerTraceTest, ForwardUsesTheTensorsInTheirOrder) {
  ASSERT_OK_AND_ASSIGN(const TransformerTrace made, MakeTransformerTrace(Shape(3), Round(), {}));
  const Trace& trace = made.trace;
  std::vector<int32_t> first_uses;
  for (const TensorUse& use : trace.uses) {
    if (std::ranges::find(first_uses, use.tensor) == first_uses.end()) {
      first_uses.push_back(use.tensor);
    }
  }
  std::vector<int32_t> in_order(trace.tensors.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(first_uses, in_order);
  EXPECT_EQ(trace.updated, in_order);
  // 2 embeddings, 6 layers a block, a norm and the head; the embeddings' backward reads no weight.
  EXPECT_EQ(trace.num_positions(), (2 + 6 * 3 + 2) + (6 * 3 + 2) + 1);
  EXPECT_EQ(trace.operators.back().num_uses, 0);
}

TEST(TransformerTraceTest, EveryGradientLeavesOnceAndTheTiedOneLast) {
  ASSERT_OK_AND_ASSIGN(const TransformerTrace made, MakeTransformerTrace(Shape(3), Round(), {}));
  std::vector<int32_t> gradients;
  for (const GradientOut& out : made.trace.gradient_outs) gradients.push_back(out.tensor);
  EXPECT_EQ(gradients.back(), 0);
  std::ranges::sort(gradients);
  EXPECT_EQ(gradients, made.trace.updated);
  EXPECT_EQ(made.operator_names[made.trace.gradient_outs.front().position],
            "backward of transformer.ln_f");
}

// Korthikanti et al., section 4.1: 34 s b h a layer of the usual proportions, with two bytes an
// element; beside it the row sums of the fused attention and the statistics of two norms.
TEST(TransformerTraceTest, ABlockKeepsWhatTheLiteratureCounts) {
  const auto peak_at_head = [](int64_t layers, bool recompute) {
    RoundShape round = Round();
    round.recompute = recompute;
    return PeakAt(*MakeTransformerTrace(Shape(layers), round, {}), "forward of lm_head");
  };
  EXPECT_EQ(peak_at_head(5, false) - peak_at_head(4, false),
            34 * kTokens * kHidden + 4 * kTokens * kHeads + 2 * 8 * kTokens);
  EXPECT_EQ(peak_at_head(5, true) - peak_at_head(4, true), 2 * kTokens * kHidden);
}

// By Narayanan et al., arXiv:2104.04473, appendix: 24 b s h^2 for the layers' matrices and 2 b s h
// V for the head, three times with backward; attention is halved by its causal mask.
TEST(TransformerTraceTest, ComputesWhatTheLiteratureCounts) {
  const ComputeRate rate = {.flops_per_second = 1e9, .memory_bytes_per_second = 1e30};
  for (const bool recompute : {false, true}) {
    RoundShape round = Round();
    round.recompute = recompute;
    ASSERT_OK_AND_ASSIGN(const TransformerTrace made, MakeTransformerTrace(Shape(3), round, rate));
    const double block = 24.0 * kTokens * kHidden * kHidden;
    const double attention = 2.0 * kTokens * kSequence * kHidden;
    const double head = 2.0 * kTokens * kHidden * 300;
    const double expected = 3 * (3 * block + attention + 2.5 * attention) + 3 * head +
                            (recompute ? 3 * (block + attention) : 0);
    EXPECT_NEAR(static_cast<double>(ComputeNs(made.trace)), expected, expected * 1e-3);
  }
}

TEST(TransformerTraceTest, MemoryAndKernelsTakeTheirTimeToo) {
  const auto time = [](double bytes_per_second, int64_t kernel_ns) {
    const ComputeRate rate = {.flops_per_second = 1e12,
                              .memory_bytes_per_second = bytes_per_second,
                              .kernel_ns = kernel_ns};
    return ComputeNs(MakeTransformerTrace(Shape(3), Round(), rate)->trace);
  };
  EXPECT_NEAR(static_cast<double>(time(1e6, 0)) / static_cast<double>(time(2e6, 0)), 2.0, 0.01);
  EXPECT_GT(time(1e12, 1000), time(1e12, 0) + 22 * 1000);
}

TEST(TransformerTraceTest, ATiedHeadsGradientWaitsForTheEmbeddings) {
  TransformerShape shape = Shape(3);
  const int64_t table = 300 * kHidden * 2;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace tied, MakeTransformerTrace(shape, Round(), {}));
  shape.tied_head = false;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace untied, MakeTransformerTrace(shape, Round(), {}));
  const std::string middle = "backward of transformer.h.1.mlp.c_fc";
  EXPECT_EQ(PeakAt(tied, middle) - PeakAt(untied, middle), table);
}

TEST(TransformerTraceTest, LaterMicroBatchesAddToTheirGradientsInPlace) {
  RoundShape round = Round();
  round.micro_batches = 3;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace made, MakeTransformerTrace(Shape(2), round, {}));
  const Trace& trace = made.trace;
  EXPECT_EQ(trace.gradient_outs.size(), trace.tensors.size());
  std::map<int32_t, int> additions;
  for (const TensorUse& use : trace.uses) {
    if (use.kind != ChunkKind::kGrad) continue;
    EXPECT_TRUE(use.written);
    ++additions[use.tensor];
  }
  EXPECT_EQ(additions.size(), trace.tensors.size());
  for (const auto& [tensor, count] : additions) EXPECT_EQ(count, 2) << tensor;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace one, MakeTransformerTrace(Shape(2), Round(), {}));
  EXPECT_GT(ComputeNs(trace), 3 * ComputeNs(one.trace));
}

TEST(TransformerTraceTest, OnTheCpuAttentionWithDropoutKeepsItsScores) {
  TransformerShape shape = Shape(3);
  RoundShape round = Round();
  round.element = ElementType::kFp32;
  round.on_cpu = true;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace without, MakeTransformerTrace(shape, round, {}));
  shape.attention_dropout = true;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace with, MakeTransformerTrace(shape, round, {}));
  // Softmax, mask and product of each block, less the row sums of the fused kind.
  constexpr int64_t kScores = kBatch * kHeads * kSequence * kSequence * 4;
  constexpr int64_t kRowSums = kBatch * kHeads * kSequence * 4;
  EXPECT_EQ(PeakAt(with, "forward of lm_head") - PeakAt(without, "forward of lm_head"),
            3 * (3 * kScores - kRowSums));
  // A GPU's fused kind draws them inside.
  round.on_cpu = false;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace on_gpu, MakeTransformerTrace(shape, round, {}));
  shape.attention_dropout = false;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace plain, MakeTransformerTrace(shape, round, {}));
  EXPECT_EQ(PeakOf(on_gpu.trace), PeakOf(plain.trace));
}

TEST(TransformerTraceTest, AnEvaluationKeepsNothingFromBlockToBlock) {
  RoundShape round = Round();
  round.train = false;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace few, MakeTransformerTrace(Shape(2), round, {}));
  ASSERT_OK_AND_ASSIGN(const TransformerTrace many, MakeTransformerTrace(Shape(20), round, {}));
  EXPECT_EQ(PeakOf(few.trace), PeakOf(many.trace));
  EXPECT_EQ(many.trace.phase, "eval");
  EXPECT_FALSE(many.trace.ends_with_update());
  EXPECT_TRUE(many.trace.gradient_outs.empty());
}

TEST(TransformerTraceTest, RecomputationRunsEachBlockAgainRightBeforeItsBackward) {
  RoundShape round = Round();
  round.recompute = true;
  ASSERT_OK_AND_ASSIGN(const TransformerTrace made, MakeTransformerTrace(Shape(2), round, {}));
  const auto position = [&](const std::string& name) {
    return std::ranges::find(made.operator_names, name) - made.operator_names.begin();
  };
  EXPECT_LT(position("backward of transformer.h.1.ln_1"),
            position("recomputation of transformer.h.0.ln_1"));
  EXPECT_EQ(position("recomputation of transformer.h.0.mlp.c_proj") + 1,
            position("backward of transformer.h.0.mlp.c_proj"));
  ASSERT_OK_AND_ASSIGN(const TransformerTrace kept, MakeTransformerTrace(Shape(2), Round(), {}));
  EXPECT_THAT(kept.operator_names, Not(Contains(HasSubstr("recomputation"))));
}

// Property: any shape gives a valid trace in which nothing that was taken is left at the end (the
// writer stops the process otherwise).
TEST(TransformerTraceTest, AnyShapeGivesAValidTrace) {
  std::mt19937_64 random(/*seed=*/11);
  const auto coin = [&] { return random() % 2 == 0; };
  for (int i = 0; i < 300; ++i) {
    TransformerShape shape = Shape(1 + static_cast<int64_t>(random() % 3));
    shape.family = coin() ? TransformerFamily::kGpt2 : TransformerFamily::kOpt;
    if (shape.family == TransformerFamily::kOpt) shape.norm_before = coin();
    if (coin()) shape.embedding_size = 32;
    shape.tied_head = coin();
    shape.final_norm = coin();
    shape.bias = coin();
    shape.affine_norm = coin();
    shape.activation_keeps_input = coin();
    shape.dropout = coin();
    shape.attention_dropout = coin();
    const RoundShape round = {.train = coin(),
                              .batch = 1 + static_cast<int64_t>(random() % 3),
                              .sequence = 1 + static_cast<int64_t>(random() % 32),
                              .micro_batches = 1 + static_cast<int64_t>(random() % 3),
                              .recompute = coin(),
                              .element = coin() ? ElementType::kBf16 : ElementType::kFp32,
                              .on_cpu = coin()};
    ASSERT_OK_AND_ASSIGN(const TransformerTrace made, MakeTransformerTrace(shape, round, {}));
    ASSERT_OK(CheckTrace(made.trace)) << "shape " << i;
    ASSERT_EQ(made.operator_names.size(), made.trace.operators.size());
    ASSERT_EQ(made.tensor_names.size(), made.trace.tensors.size());
  }
}

TEST(TransformerTraceTest, RefusesRoundsThatNobodyCanRun) {
  RoundShape round = Round();
  round.sequence = 33;
  EXPECT_THAT(MakeTransformerTrace(Shape(2), round, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32 positions")));
  round = Round();
  round.batch = 0;
  EXPECT_THAT(MakeTransformerTrace(Shape(2), round, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  round = Round();
  round.micro_batches = int64_t{1} << 40;
  EXPECT_THAT(MakeTransformerTrace(Shape(2), round, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("operators")));
  EXPECT_THAT(MakeTransformerTrace(Shape(2), Round(), {.flops_per_second = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rate")));
}

}  // namespace
}  // namespace gemini::policies
