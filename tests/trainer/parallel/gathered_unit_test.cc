// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/gathered_unit.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kBlock = 1024;

UnitOptions OptionsOf(UnitDivision division, GradientSync sync = GradientSync::kEach) {
  return {.division = division, .sync = sync, .block_elements = kBlock};
}

// A unit of three vectors, of which ranks use different ones.
TEST(GatheredUnitTest, ATensorThatSomeRankUsedHasAGradientInAll) {
  RunThreadRanks(3, [](Communicator& me) {
    GatheredUnit unit("it", {{"a", {kBlock}}, {"b", {kBlock}}, {"c", {kBlock}}, {"d", {5}, false}},
                      torch::kFloat32, me, me.world(), OptionsOf(UnitDivision::kShards));
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& parameter : unit.parameters()) parameter.fill_(1);
    }
    const std::vector<Tensor> views = unit.Views(UnitUse::kToTheEnd);
    EXPECT_FALSE(views[3].requires_grad());
    const Tensor sum = me.rank() == 1 ? (views[1] * 3).sum() : (views[0] * (me.rank() + 1)).sum();
    sum.backward();
    EXPECT_FALSE(unit.is_held());
    for (size_t i = 0; i < unit.pieces().size(); ++i) {
      const Tensor gradient = unit.parameters()[i].grad();
      const int64_t tensor = unit.pieces()[i].tensor;
      ASSERT_EQ(gradient.defined(), tensor <= 1) << tensor;
      if (tensor > 1) continue;
      EXPECT_TRUE(torch::equal(gradient, torch::full({kBlock}, tensor == 0 ? 4.0 : 3.0)));
    }
  });
}

// Of three micro-batches, the first alone uses "a", in one rank, and the last "b".
TEST(GatheredUnitTest, GradientsOfEarlierMicroBatchesAreNotLost) {
  for (const UnitDivision division : {UnitDivision::kReplicas, UnitDivision::kShardsAndWhole}) {
    RunThreadRanks(2, [&](Communicator& me) {
      GatheredUnit unit("it", {{"a", {2, kBlock}}, {"b", {kBlock}}, {"c", {kBlock}}},
                        torch::kFloat32, me, me.world(), OptionsOf(division, GradientSync::kLast));
      {
        const torch::NoGradGuard no_grad;
        for (const Tensor& parameter : unit.parameters()) parameter.fill_(1);
      }
      for (int64_t step = 0; step < 2; ++step) {
        for (const Tensor& parameter : unit.parameters()) parameter.mutable_grad().reset();
        for (int64_t i = 0; i < 3; ++i) {
          unit.set_last_micro_batch(i == 2);
          const std::vector<Tensor> views = unit.Views(UnitUse::kOnce);
          Tensor sum = views[1].sum();
          if (i == 0 && me.rank() == 1) sum = (views[0] * 5).sum();
          sum.backward();
        }
        for (size_t i = 0; i < unit.pieces().size(); ++i) {
          const Tensor gradient = unit.parameters()[i].grad();
          const int64_t tensor = unit.pieces()[i].tensor;
          ASSERT_EQ(gradient.defined(), tensor <= 1) << tensor;
          if (tensor > 1) continue;
          EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, 5.0))) << tensor;
        }
      }
    });
  }
}

// Two pairs of ranks have copies of each other's pieces. One of a pair uses "a" alone, the other
// "b", too.
TEST(GatheredUnitTest, CopiesAddTheirGradientsBehindAllMicroBatches) {
  for (const GradientSync sync : {GradientSync::kEach, GradientSync::kLast}) {
    RunThreadRanks(4, [&](Communicator& me) {
      ASSERT_OK_AND_ASSIGN(const RankGroup* const shards, me.MakeGroup("shards", {{0, 1}, {2, 3}}));
      ASSERT_OK_AND_ASSIGN(const RankGroup* const copies, me.MakeGroup("copies", {{0, 2}, {1, 3}}));
      for (const UnitDivision division :
           {UnitDivision::kReplicas, UnitDivision::kShardsAndWhole, UnitDivision::kShards}) {
        if (division == UnitDivision::kShards && sync == GradientSync::kLast) continue;
        UnitOptions options = OptionsOf(division, sync);
        options.copies = copies;
        GatheredUnit unit("it", {{"a", {2, kBlock}}, {"b", {kBlock}}, {"c", {kBlock}}},
                          torch::kFloat32, me, *shards, options);
        const torch::NoGradGuard no_grad;
        for (const Tensor& parameter : unit.parameters()) parameter.fill_(1);
        for (int64_t step = 0; step < 2; ++step) {
          for (const Tensor& parameter : unit.parameters()) parameter.mutable_grad().reset();
          for (int64_t i = 0; i < 2; ++i) {
            const at::AutoGradMode with_graph(true);
            unit.set_last_micro_batch(i == 1);
            const std::vector<Tensor> views = unit.Views(UnitUse::kToTheEnd);
            Tensor sum = (views[0] * static_cast<double>(me.rank() + 1)).sum();
            if (me.rank() > 1) sum = sum + views[1].sum();
            sum.backward();
          }
          for (const Tensor& parameter : unit.parameters())
            EXPECT_FALSE(parameter.grad().defined());
          unit.AddOverCopies();
          for (size_t i = 0; i < unit.pieces().size(); ++i) {
            const Tensor gradient = unit.parameters()[i].grad();
            const int64_t tensor = unit.pieces()[i].tensor;
            ASSERT_EQ(gradient.defined(), tensor <= 1) << tensor;
            if (tensor > 1) continue;
            // Of each micro-batch 1 + 2 + 3 + 4, and of "b" two.
            EXPECT_TRUE(
                torch::equal(gradient, torch::full_like(gradient, tensor == 0 ? 20.0 : 4.0)));
          }
        }
      }
    });
  }
}

TEST(GatheredUnitTest, AUnitThatIsElsewhereHasNothing) {
  RunThreadRanks(2, [](Communicator& me) {
    UnitOptions options = OptionsOf(UnitDivision::kShardsAndWhole, GradientSync::kLast);
    options.is_here = false;
    GatheredUnit unit("it", {{"a", {2, kBlock}}}, torch::kFloat32, me, me.world(), options);
    EXPECT_TRUE(unit.parameters().empty());
    EXPECT_TRUE(unit.pieces().empty());
    EXPECT_TRUE(unit.BesidePieces().empty());
    EXPECT_EQ(unit.cut().num_elements(), 2 * kBlock);
    unit.Refresh();  // Asks nobody.
  });
}

TEST(GatheredUnitTest, GraphsKeepTheBuffersMemoryOfNone) {
  RunThreadRanks(2, [](Communicator& me) {
    GatheredUnit unit("it", {{"a", {64, 64}}}, torch::kFloat32, me, me.world(),
                      OptionsOf(UnitDivision::kShards));
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& parameter : unit.parameters()) parameter.normal_();
    }
    const Tensor x = torch::randn({4, 64}).set_requires_grad(true);
    const std::vector<Tensor> first = unit.Views(UnitUse::kAgain);
    const std::vector<Tensor> second = unit.Views(UnitUse::kAgain);  // Another micro-batch.
    const Tensor y = x.matmul(first[0]), z = x.matmul(second[0]);
    unit.Release();
    EXPECT_GT(first[0].storage().nbytes(), 0);
    unit.Release();
    EXPECT_EQ(first[0].storage().nbytes(), 0);
    const Tensor loss = unit.GatherBehind({y})[0].square().sum();
    const Tensor other = unit.GatherBehind({z})[0].square().sum();
    loss.backward();
    const Tensor once = x.grad().clone();
    EXPECT_FALSE(unit.is_held());
    other.backward();
    EXPECT_FALSE(unit.is_held());
    EXPECT_TRUE(torch::equal(x.grad(), once * 2));
  });
}

}  // namespace
}  // namespace gemini::trainer
