// SPDX-License-Identifier: Apache-2.0
// Ranks of a square, of several squares or of a cube that share each layer compute what one rank
// computes that has all of them.
#include <map>
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
#include "trainer/models/transformer.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/parallel/tensor_fit.h"
#include "trainer/parallel/tensor_layers_2d.h"
#include "trainer/parallel/tensor_layers_3d.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;
using policies::TensorGrid;
using policies::TensorMode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using torch::Tensor;

constexpr int64_t kSequences = 8, kVocabulary = 301;

struct GridKind {
  const char* name;
  TensorMode mode;
  int64_t num_ranks;
  int64_t depth = 1;
  TensorGrid grid() const { return *TensorGrid::Make(mode, num_ranks, depth); }
};
constexpr GridKind k2d = {"2d", TensorMode::k2d, 4};
constexpr GridKind kDepth1 = {"depth_1", TensorMode::k2Point5d, 4, 1};
constexpr GridKind kDepth2 = {"depth_2", TensorMode::k2Point5d, 8, 2};
constexpr GridKind k3d = {"3d", TensorMode::k3d, 8};

RankLayers MakeLayers(Communicator& me, torch::ScalarType type, const GridKind& kind) {
  const TensorGrid grid = kind.grid();
  const RankLayout layout(*policies::Mesh::Make(me.num_ranks(), {.tensor = me.num_ranks()}), grid);
  const auto line = [&](const char* name, TensorAxis axis) -> RankLine {
    return {&me, *me.MakeGroup(name, layout.Lines(axis))};
  };
  GridLines lines;
  lines.i = line("tensor i", TensorAxis::kI);
  lines.j = line("tensor j", TensorAxis::kJ);
  lines.k = line("tensor k", TensorAxis::kK);
  const GridPlan plan = kind.mode == TensorMode::k3d ? PlanOf3d(grid, me.rank(), lines)
                                                     : PlanOf2d(grid, me.rank(), lines);
  RankLayers made = {.layers = std::make_unique<GridLayers>(type, plan), .place = me.rank()};
  if (kind.depth > 1) made.sums = lines.k;
  return made;
}

struct Case {
  LayersCase layers;
  GridKind kind;
};

Case In(const SmallModel& model, const GridKind& kind, torch::ScalarType type = torch::kFloat64,
        bool recompute = false) {
  return {{model, kind.num_ranks, type, recompute,
           [kind](Communicator& me, const LayersCase& c) { return MakeLayers(me, c.type, kind); }},
          kind};
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const LayersCase& c = info.param.layers;
  return absl::StrCat(
      info.param.kind.name, "_", c.model.name, c.type == torch::kFloat64 ? "_fp64" : "_fp32",
      c.recompute ? "_recomputed" : "", c.frozen >= 0 ? absl::StrCat("_frozen_", c.frozen) : "",
      c.packed ? "_packed" : "");
}

class TensorGridLayersTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorGridLayersTest, LossGradientsAndNormAreThoseOfOneRank) {
  torch::set_num_threads(1);
  const LayersCase& c = GetParam().layers;
  ASSERT_OK(CheckTensorGrid(c.model.spec(), GetParam().kind.grid(), kSequences));
  EXPECT_THAT(Differences(c, TrainOnOneRank(c)), IsEmpty());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const GridKind& kind : {k2d, kDepth2, k3d}) {
    for (const SmallModel& model : SmallModels()) {
      if (!CheckTensorGrid(model.spec(), kind.grid(), kSequences).ok()) continue;
      cases.push_back(In(model, kind));
    }
    cases.push_back(In(kSmallPhi3, kind));
    for (const SmallModel& model :
         {SmallModelOf("gpt2_tied"), SmallModelOf("llama"), kSmallLongRope}) {
      cases.push_back(In(model, kind));
      cases.back().layers.packed = true;
    }
    for (const SmallModel& model : {SmallModelOf("gpt2_tied"), SmallModelOf("llama")}) {
      cases.push_back(In(model, kind, torch::kFloat32));
      cases.push_back(In(model, kind, torch::kFloat64, /*recompute=*/true));
      for (int64_t frozen = 0; frozen < 3; ++frozen) {
        cases.push_back(In(model, kind));
        cases.back().layers.frozen = frozen;
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorGridLayersTest, ::testing::ValuesIn(Cases()), NameOf);

// What one rank computes of a model with its own values, by names.
std::map<std::string, Tensor> TrainARank(Communicator& me, const GridKind& kind) {
  const RankLayers made = MakeLayers(me, torch::kFloat32, kind);
  Transformer model(SmallModelOf("gpt2_tied").spec(), *made.layers);
  for (const auto& parameter : model.named_parameters()) {
    const torch::NoGradGuard no_grad;
    const ParameterBoxes& boxes = made.layers->BoxesOf(parameter.value());
    const Tensor whole =
        0.1 * torch::randn(boxes.sizes(), at::detail::createCPUGenerator(boxes.sizes().size()));
    parameter.value().zero_();
    for (const Box& box : boxes.BoxesOf(made.place)) {
      OfRank(parameter.value(), box).copy_(OfWhole(whole, box));
    }
  }
  model.set_dropout_draw(DropoutDraw{.seed = 5});
  const Tensor tokens = torch::randint(0, kVocabulary, {kSequences, 16},
                                       at::detail::createCPUGenerator(1), torch::kInt64);
  const BatchLoss loss = model.Losses(tokens, LossFactors());
  loss.Backward(LossFactors());
  std::map<std::string, Tensor> results = {{"loss", loss.sum.detach()}};
  for (const auto& parameter : model.named_parameters()) {
    // Values and gradients: ranks whose values differ have other parts.
    results[parameter.key()] = torch::stack({parameter.value().detach(), parameter.value().grad()});
  }
  const torch::NoGradGuard no_grad;
  model.eval();
  results["logits"] = model.Forward(tokens);
  return results;
}

std::vector<std::map<std::string, Tensor>> TrainRanks(const GridKind& kind) {
  torch::set_num_threads(1);
  std::vector<std::map<std::string, Tensor>> results(static_cast<size_t>(kind.num_ranks));
  RunThreadRanks(kind.num_ranks, [&](Communicator& me) {
    results[static_cast<size_t>(me.rank())] = TrainARank(me, kind);
  });
  return results;
}

// One square is 2d.
TEST(TensorGridTest, DepthOneHasTheBitsOf2d) {
  const auto deep = TrainRanks(kDepth1), flat = TrainRanks(k2d);
  for (size_t rank = 0; rank < flat.size(); ++rank) {
    for (const auto& [name, value] : flat[rank]) {
      EXPECT_TRUE(torch::equal(deep[rank].at(name), value)) << name;
    }
  }
}

// Those of a square's depth have other sequences, so their gradients differ until they are summed.
TEST(TensorGridTest, WhatRanksHaveAlikeHasTheSameBits) {
  for (const GridKind& kind : {k2d, k3d}) {
    const auto ranks = TrainRanks(kind);
    int num_alike = 0;
    for (const auto& one : ranks) {
      for (const auto& other : ranks) {
        for (const auto& [name, value] : one) {
          const bool is_parameter = name != "loss" && name != "logits";
          if (is_parameter && !torch::equal(value[0], other.at(name)[0])) continue;
          EXPECT_TRUE(torch::equal(value, other.at(name))) << name;
          num_alike += &one != &other && is_parameter;
        }
      }
    }
    EXPECT_GT(num_alike, 0);
  }
}

// Each site is skipped in turn. In 2.5d `gradients` are the caller's sums over the squares.
void ExpectEachCollectiveMatters(const Case& one, size_t num_sites) {
  torch::set_num_threads(1);
  const LayersCase& c = one.layers;
  const TrainResults one_rank = TrainOnOneRank(c);
  std::set<std::string> sites;
  EXPECT_THAT(Differences(c, one_rank, "none", &sites), IsEmpty());
  EXPECT_EQ(sites.size(), num_sites) << ::testing::PrintToString(sites);
  for (const std::string& site : sites) {
    EXPECT_THAT(Differences(c, one_rank, site), Not(IsEmpty())) << site;
  }
}
TEST(TensorGridTest, EachCollectiveOf2dMatters) {
  ExpectEachCollectiveMatters(In(SmallModelOf("gpt2_tied"), k2d), 12);
}
TEST(TensorGridTest, EachCollectiveOf2Point5dMatters) {
  ExpectEachCollectiveMatters(In(SmallModelOf("llama"), kDepth2), 13);
}
TEST(TensorGridTest, EachCollectiveOf3dMatters) {
  ExpectEachCollectiveMatters(In(SmallModelOf("qwen2"), k3d), 14);
}

// A loss of one's own, of logits that all ranks have alike.
TEST(TensorGridTest, LogitsHaveAGradient) {
  constexpr int64_t kWidth = 8;
  at::Generator generator = at::detail::createCPUGenerator(3);
  const auto random = [&](std::vector<int64_t> sizes) {
    return torch::randn(sizes, generator, torch::kFloat64);
  };
  const Tensor table = random({kVocabulary, kWidth}), hidden = random({4, 2, kWidth});
  const auto whole = PlainLayers(torch::kFloat64).Head({kVocabulary, kWidth}, nullptr);
  {
    const torch::NoGradGuard no_grad;
    whole->parameters()[0].copy_(table);
  }
  const Tensor in = hidden.clone().requires_grad_();
  whole->Logits(in).square().sum().backward();
  const auto is_close = [&](const Tensor& mine, const Tensor& expected) {
    return Largest(mine - expected) <= 1e-12 * Largest(expected);
  };
  for (const GridKind& kind : {k2d, kDepth2, k3d}) {
    SCOPED_TRACE(kind.name);
    RunThreadRanks(kind.num_ranks, [&](Communicator& me) {
      const RankLayers made = MakeLayers(me, torch::kFloat64, kind);
      const auto head = made.layers->Head({kVocabulary, kWidth}, nullptr);
      const HiddenPart part = made.layers->hidden_part();
      const auto part_of = [&](const Tensor& x) {
        return x.chunk(part.sequences.count, 0)[static_cast<size_t>(part.sequences.index)].chunk(
            part.width.count, -1)[static_cast<size_t>(part.width.index)];
      };
      const Tensor rows = head->parameters()[0];
      const std::vector<Box> boxes = made.layers->BoxesOf(rows).BoxesOf(made.place);
      {
        const torch::NoGradGuard no_grad;
        rows.zero_();
        for (const Box& box : boxes) OfRank(rows, box).copy_(OfWhole(table, box));
      }
      const Tensor mine = part_of(hidden).clone().requires_grad_();
      head->Logits(mine).square().sum().backward();
      EXPECT_TRUE(is_close(mine.grad(), part_of(in.grad())));
      Tensor gradient = rows.grad().contiguous();
      if (made.sums.group != nullptr) AddOverRanks(gradient, made.sums, "gradients");
      for (const Box& box : boxes) {
        EXPECT_TRUE(is_close(OfRank(gradient, box), OfWhole(whole->parameters()[0].grad(), box)));
      }
    });
  }
}

}  // namespace
}  // namespace gemini::trainer
