// SPDX-License-Identifier: Apache-2.0
// Ranks that share each layer compute what one rank computes that has all of them.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/layers_beside_one_rank.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/models/plain_layers.h"
#include "trainer/parallel/tensor_layers_1d.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using torch::Tensor;

constexpr int64_t kVocabulary = 301;

// Of a line of ranks, with the last of which have the same key and value head.
RankLayers MakeLayers(Communicator& me, const LayersCase& c, bool parts) {
  const int64_t copies = CopiesOfKeyHeads(c.model.spec(), me.num_ranks());
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < me.num_ranks(); ++rank) {
    if (rank % copies == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  const RankLine of_copies = {&me, *me.MakeGroup("copies", groups)};
  return {.layers = std::make_unique<TensorLayers1d>(c.type, RankLine{&me, &me.world()}, of_copies,
                                                     parts),
          .place = me.rank()};
}
RankLayers Whole(Communicator& me, const LayersCase& c) { return MakeLayers(me, c, false); }
RankLayers InParts(Communicator& me, const LayersCase& c) { return MakeLayers(me, c, true); }

struct Case {
  LayersCase layers;
  bool parts;  // Of sequences, between layers.
};

Case In(const SmallModel& model, int64_t num_ranks, torch::ScalarType type = torch::kFloat64,
        bool recompute = false, bool parts = false) {
  return {{model, num_ranks, type, recompute, parts ? InParts : Whole}, parts};
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const LayersCase& c = info.param.layers;
  return absl::StrCat(c.model.name, "_", c.num_ranks, c.type == torch::kFloat64 ? "_fp64" : "_fp32",
                      c.recompute ? "_recomputed" : "", info.param.parts ? "_in_parts" : "",
                      c.frozen >= 0 ? absl::StrCat("_frozen_", c.frozen) : "");
}

class TensorLayersTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorLayersTest, LossGradientsAndNormAreThoseOfOneRank) {
  torch::set_num_threads(1);
  const LayersCase& c = GetParam().layers;
  ASSERT_OK(CheckTensor1d(c.model.spec(), c.num_ranks));
  EXPECT_THAT(Differences(c, TrainOnOneRank(c)), IsEmpty());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const SmallModel& model : SmallModels()) {
    for (const int num_ranks : {2, 4}) cases.push_back(In(model, num_ranks));
    cases.push_back(In(model, 2, torch::kFloat64, /*recompute=*/true));
    cases.push_back(In(model, 4, torch::kFloat32));
    for (const int num_ranks : {2, 4}) {
      cases.push_back(In(model, num_ranks, torch::kFloat64, /*recompute=*/num_ranks == 4, true));
    }
    cases.push_back(In(model, 2, torch::kFloat32, /*recompute=*/false, true));
  }
  for (const char* const model : {"gpt2_tied", "llama", "qwen2_moe"}) {
    for (int64_t frozen = 0; frozen < 3; ++frozen) {
      for (const bool parts : {false, true}) {
        cases.push_back(In(SmallModelOf(model), 2, torch::kFloat64, /*recompute=*/false, parts));
        cases.back().layers.frozen = frozen;
      }
    }
  }
  for (const SmallModel& model : TaskModels()) {
    for (const bool parts : {false, true}) {
      for (const int num_ranks : {2, 4}) {
        cases.push_back(In(model, num_ranks, torch::kFloat64, /*recompute=*/num_ranks == 4, parts));
      }
      cases.push_back(In(model, 2, torch::kFloat32, /*recompute=*/false, parts));
      for (int64_t frozen = 0; frozen < 3; ++frozen) {
        cases.push_back(In(model, 2, torch::kFloat64, /*recompute=*/false, parts));
        cases.back().layers.frozen = frozen;
      }
    }
  }
  cases.push_back(In(kSmallPhi3, 2, torch::kFloat64, /*recompute=*/false, true));
  cases.push_back(In(kSmallPhi3, 2));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorLayersTest, ::testing::ValuesIn(Cases()), NameOf);

// Of two ranks, of which each has a key and value head, the norms of heads alone are copies.
TEST(Tensor1dTest, EachCollectiveMatters) {
  torch::set_num_threads(1);
  const auto in_parts = [](const char* name) {
    return In(SmallModelOf(name), 2, torch::kFloat64, /*recompute=*/false, /*parts=*/true);
  };
  const std::pair<Case, size_t> cases[] = {{In(SmallModelOf("gpt2_tied"), 2), 7},
                                           {In(SmallModelOf("qwen3"), 2), 8},
                                           {In(SmallModelOf("qwen2_moe"), 2), 9},
                                           {In(SmallModelOf("bert_masked"), 2), 7},
                                           {In(SmallModelOf("bert_classifier"), 2), 4},
                                           {in_parts("gpt2_tied"), 8},
                                           {in_parts("qwen2_moe"), 11},
                                           {in_parts("bert_masked"), 8},
                                           {in_parts("llama_classifier"), 6}};
  for (const auto& [one, num_sites] : cases) {
    const LayersCase& c = one.layers;
    SCOPED_TRACE(c.model.name);
    const TrainResults one_rank = TrainOnOneRank(c);
    std::set<std::string> sites;
    EXPECT_THAT(Differences(c, one_rank, "none", &sites), IsEmpty());
    EXPECT_EQ(sites.size(), num_sites);
    for (const std::string& site : sites) {
      EXPECT_THAT(Differences(c, one_rank, site), Not(IsEmpty())) << site;
    }
  }
}

// The last rank has fewer rows than the others, by which it would take more tokens at a time.
TEST(Tensor1dTest, RanksOfAnUnevenVocabularyMergeAlike) {
  torch::set_num_threads(1);
  constexpr int64_t kRows = 262'145, kWidth = 2, kLabels = 600;
  at::Generator generator = at::detail::createCPUGenerator(3);
  const Tensor table = torch::randn({kRows, kWidth}, generator);
  const Tensor hidden = torch::randn({1, kLabels, kWidth}, generator);
  const Tensor labels = torch::randint(0, kRows, {1, kLabels}, generator, torch::kInt64);
  const torch::NoGradGuard no_grad;
  const auto whole = PlainLayers(torch::kFloat32).Head({kRows, kWidth}, nullptr);
  whole->parameters()[0].copy_(table);
  const double expected = whole->SumOfLosses(hidden, labels, 1).item<double>();
  RunThreadRanks(2, [&](Communicator& me) {
    const torch::NoGradGuard in_this_thread;
    const RankLine line = {&me, &me.world()};
    TensorLayers1d layers(torch::kFloat32, line, line, /*parts_of_sequences=*/false);
    const auto head = layers.Head({kRows, kWidth}, nullptr);
    const Tensor rows = head->parameters()[0];
    for (const Box& box : layers.BoxesOf(rows).BoxesOf(me.rank())) {
      OfRank(rows, box).copy_(OfWhole(table, box));
    }
    EXPECT_NEAR(head->SumOfLosses(hidden, labels, 1).item<double>(), expected, 1e-5 * expected);
  });
}

// A loss of one's own, of logits that all ranks have alike.
TEST(Tensor1dTest, LogitsHaveAGradient) {
  constexpr int64_t kWidth = 8;
  at::Generator generator = at::detail::createCPUGenerator(3);
  const auto random = [&](std::vector<int64_t> sizes) {
    return torch::randn(sizes, generator, torch::kFloat64);
  };
  const Tensor table = random({kVocabulary, kWidth}), hidden = random({2, 4, kWidth});
  const auto whole = PlainLayers(torch::kFloat64).Head({kVocabulary, kWidth}, nullptr);
  {
    const torch::NoGradGuard no_grad;
    whole->parameters()[0].copy_(table);
  }
  const Tensor in = hidden.clone().requires_grad_();
  whole->Logits(in).square().sum().backward();
  RunThreadRanks(2, [&](Communicator& me) {
    const RankLine line = {&me, &me.world()};
    TensorLayers1d layers(torch::kFloat64, line, line, /*parts_of_sequences=*/false);
    const auto head = layers.Head({kVocabulary, kWidth}, nullptr);
    const Tensor rows = head->parameters()[0];
    const std::vector<Box> boxes = layers.BoxesOf(rows).BoxesOf(me.rank());
    {
      const torch::NoGradGuard no_grad;
      rows.zero_();
      for (const Box& box : boxes) OfRank(rows, box).copy_(OfWhole(table, box));
    }
    const Tensor mine = hidden.clone().requires_grad_();
    head->Logits(mine).square().sum().backward();
    EXPECT_LE(Largest(mine.grad() - in.grad()), 1e-12 * Largest(in.grad()));
    for (const Box& box : boxes) {
      EXPECT_LE(Largest(OfRank(rows.grad(), box) - OfWhole(whole->parameters()[0].grad(), box)),
                1e-12 * Largest(in.grad()));
    }
  });
}

TEST(Tensor1dTest, AModelThatDoesNotDivideIsRefused) {
  const auto refused = [](const SmallModel& model, int64_t num_ranks, const char* text) {
    EXPECT_THAT(CheckTensor1d(model.spec(), num_ranks),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(SmallModelOf("gpt2_tied"), 3,
          "--tensor 1d of 3 ranks: its attention heads, 4, do not divide by 3: use --tensor-size 2 "
          "or 4");
  refused(SmallModelOf("gpt2_tied"), 8,
          "its attention heads, 4, do not divide by 8: use --tensor-size 4");
  refused(kSmallPhi3, 4, "its key and value heads, 2, do not divide by 4: use --tensor-size 2");
  for (const SmallModel& model : SmallModels()) {
    EXPECT_OK(CheckTensor1d(model.spec(), 4));
  }
  ModelSpec spec = SmallModelOf("llama").spec();
  spec.feed_forward.width = 90;
  EXPECT_THAT(
      CheckTensor1d(spec, 4).message(),
      HasSubstr("between its feed-forward matrices, 90, do not divide by 4: use --tensor-size 2"));
  spec.feed_forward.width = 96;
  spec.attention.num_heads = 12;
  spec.attention.num_kv_heads = 2;
  EXPECT_THAT(CheckTensor1d(spec, 3).message(),
              HasSubstr("its key and value heads, 2, are fewer, and do not divide them"));
  spec.vocab_size = 5;
  EXPECT_THAT(
      CheckTensor1d(spec, 4).message(),
      HasSubstr("its vocabulary of 5 leaves the last rank without a row: use --tensor-size 2"));
}

TEST(Tensor1dTest, APairTrunkThatDoesNotDivideIsRefused) {
  const auto fitting = [] {
    ModelSpec spec;
    spec.vocab_size = 23;
    spec.task.kind = TaskKind::kMasked;
    spec.pair_trunk = {.msa_width = 24,
                       .pair_width = 16,
                       .msa_heads = {.num_heads = 8, .head_size = 3},
                       .triangle_heads = {.num_heads = 4, .head_size = 4}};
    return spec;
  };
  EXPECT_OK(CheckTensor1d(fitting(), 4));
  EXPECT_EQ(CopiesOfKeyHeads(fitting(), 4), 1);
  const auto refused = [](const ModelSpec& spec, int64_t num_ranks, const char* text) {
    EXPECT_THAT(CheckTensor1d(spec, num_ranks),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(fitting(), 8,
          "--tensor 1d of 8 ranks: the heads of its pairs (triangle_num_heads), 4, do not divide "
          "by 8: use --tensor-size 4 with");
  refused(fitting(), 3,
          "the heads of its alignment (msa_num_heads), 8, do not divide by 3: use --tensor-size 2 "
          "or 4");
  ModelSpec spec = fitting();
  spec.pair_trunk->transition_factor = 1;
  spec.pair_trunk->pair_width = 18;
  refused(spec, 4, "the elements in its pairs' transition, 18, do not divide by 4");
  spec.pair_trunk->msa_width = 26;
  refused(spec, 4, "the elements in its alignment's transition, 26, do not divide by 4");
  spec = fitting();
  spec.vocab_size = 5;
  refused(spec, 4, "its vocabulary of 5 leaves the last rank without a row");
  spec.task.kind = TaskKind::kDistogram;  // Its head is whole.
  EXPECT_OK(CheckTensor1d(spec, 4));
}

}  // namespace
}  // namespace gemini::trainer
