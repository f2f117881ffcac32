// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/part_functions.h"

#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kRanks = 3, kBatch = 2, kTokens = 4, kWidth = 6;  // Tokens of a part.
constexpr int64_t kOut = 4;
constexpr int64_t kInTokens = -2;  // The dimension of parts.

Tensor Random(at::IntArrayRef sizes, uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::kFloat64);
}
Tensor PartOf(const Tensor& whole, int64_t rank) {
  return whole.narrow(1, rank * kTokens, kTokens).contiguous();
}
RankLine LineOf(Communicator& me) { return {&me, &me.world()}; }
bool AreClose(const Tensor& one, const Tensor& other) {
  return torch::allclose(one, other, /*rtol=*/1e-12, /*atol=*/1e-12);
}
std::map<std::string, int64_t> OperationsBySite(const Communicator& me) {
  std::map<std::string, int64_t> operations;
  for (const SentBytes& one : me.sent()) operations[one.site] += one.operations;
  return operations;
}

TEST(PartFunctionsTest, PartsArePutTogetherAndTheirGradientsAddedUp) {
  const Tensor whole = Random({kBatch, kRanks * kTokens, kWidth}, 1);
  RunThreadRanks(kRanks, [&](Communicator& me) {
    const Tensor part = PartOf(whole, me.rank()).requires_grad_();
    const Tensor all = GatherParts(part, kInTokens, LineOf(me), "it");
    EXPECT_TRUE(torch::equal(all, whole));
    // Each rank goes on in its own way.
    (all * static_cast<double>(me.rank() + 1)).sum().backward();
    EXPECT_TRUE(AreClose(part.grad(), torch::full_like(part, 6)));
  });
}

TEST(PartFunctionsTest, SumsComeInParts) {
  const Tensor whole = Random({kBatch, kRanks * kTokens, kWidth}, 1);
  const Tensor slope = Random({kBatch, kRanks * kTokens, kWidth}, 2);
  RunThreadRanks(kRanks, [&](Communicator& me) {
    const Tensor own = (whole * static_cast<double>(me.rank() + 1)).requires_grad_();
    const Tensor part = ReduceScatterParts(own, kInTokens, LineOf(me), "it");
    EXPECT_TRUE(AreClose(part, PartOf(6 * whole, me.rank())));
    (part * PartOf(slope, me.rank())).sum().backward();
    EXPECT_TRUE(torch::equal(own.grad(), slope));
  });
}

TEST(PartFunctionsTest, RowsGoRankByRank) {
  RunThreadRanks(kRanks, [&](Communicator& me) {
    const Tensor rows = Random({kTokens, kWidth}, 10 + static_cast<uint64_t>(me.rank()));
    const Tensor all = GatherParts(rows, kInTokens, LineOf(me), "it");
    EXPECT_TRUE(torch::equal(all.narrow(0, me.rank() * kTokens, kTokens), rows));
    EXPECT_TRUE(AreClose(ReduceScatterParts(all, kInTokens, LineOf(me), "back"), kRanks * rows));
  });
}

// What three layers compute of what is put together, of which the second has no bias.
struct Layers {
  explicit Layers(bool first_learns) {
    for (uint64_t i = 0; i < 3; ++i) {
      weights.push_back(Random({3, kWidth}, 20 + i).requires_grad_(i > 0 || first_learns));
    }
    bias = Random({3}, 30).requires_grad_();
  }
  Tensor Forward(const Tensor& x, const std::shared_ptr<GatheredParts>& parts) const {
    return LinearOfParts(x, parts, {weights[0]}, bias) *
               LinearOfParts(x, parts, {weights[1]}, Tensor()) +
           LinearOfParts(x, parts, {weights[2]}, bias);
  }
  std::vector<Tensor> weights;
  Tensor bias;
};

TEST(PartFunctionsTest, LayersGatherOnceMoreForAllOfTheirWeights) {
  for (const bool first_learns : {true, false}) {
    // One rank that has all, and no parts.
    const Tensor whole = Random({kBatch, kRanks * kTokens, kWidth}, 1).requires_grad_();
    const Layers alone(first_learns);
    alone.Forward(whole, nullptr).sum().backward();
    RunThreadRanks(kRanks, [&](Communicator& me) {
      const Layers layers(first_learns);
      const Tensor part = PartOf(whole.detach(), me.rank()).requires_grad_();
      std::weak_ptr<GatheredParts> parts;
      const Tensor all = GatherParts(part, kInTokens, LineOf(me), "it", parts);
      const Tensor loss = layers.Forward(all, parts.lock()).sum();
      loss.backward();
      // A gather, its sum, and a gather again.
      EXPECT_EQ(OperationsBySite(me).at("it"), 3);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(layers.weights[i].grad().defined(), alone.weights[i].grad().defined());
        if (!layers.weights[i].grad().defined()) continue;
        EXPECT_TRUE(AreClose(layers.weights[i].grad(), alone.weights[i].grad())) << i;
      }
      EXPECT_TRUE(AreClose(layers.bias.grad(), alone.bias.grad()));
      // Each rank has computed all of it.
      EXPECT_TRUE(AreClose(part.grad(), kRanks * PartOf(whole.grad(), me.rank())));
    });
  }
}

TEST(PartFunctionsTest, GraphsThatLiveTogetherHavePartsOfTheirOwn) {
  RunThreadRanks(kRanks, [&](Communicator& me) {
    const Layers layers(/*first_learns=*/true);
    std::weak_ptr<GatheredParts> parts;
    const auto forward = [&](uint64_t seed, const Layers& by) {
      const Tensor whole = Random({kBatch, kRanks * kTokens, kWidth}, seed);
      const Tensor part = PartOf(whole, me.rank()).requires_grad_();
      const Tensor all = GatherParts(part, kInTokens, LineOf(me), "it", parts);
      return by.Forward(all, parts.lock()).sum();
    };
    const Tensor first = forward(1, layers), second = forward(2, layers);
    {
      const torch::NoGradGuard no_grad;  // An evaluation between.
      const Tensor whole = Random({kBatch, kRanks * kTokens, kWidth}, 3);
      const Tensor all = GatherParts(PartOf(whole, me.rank()), kInTokens, LineOf(me), "evaluation");
      EXPECT_FALSE(layers.Forward(all, parts.lock()).requires_grad());
    }
    second.backward();
    const Tensor of_second = layers.weights[0].grad().clone();
    first.backward();
    const Layers apart(/*first_learns=*/true);
    forward(2, apart).backward();
    EXPECT_TRUE(torch::equal(apart.weights[0].grad(), of_second));
    forward(1, apart).backward();
    EXPECT_TRUE(torch::equal(apart.weights[0].grad(), layers.weights[0].grad()));
  });
}

using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakMemory MemoryOf(const Tensor& x) {
  return WeakMemory(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(x.storage().unsafeGetStorageImpl()));
}

TEST(PartFunctionsTest, GraphsDoNotKeepWhatWasPutTogether) {
  RunThreadRanks(kRanks, [&](Communicator& me) {
    const Layers layers(/*first_learns=*/true);
    std::weak_ptr<GatheredParts> parts;
    const Tensor part = Random({kBatch, kTokens, kWidth}, 1).requires_grad_();
    Tensor all = GatherParts(part, kInTokens, LineOf(me), "it", parts);
    const WeakMemory memory = MemoryOf(all);
    const Tensor loss = layers.Forward(all, parts.lock()).sum();
    all.reset();
    EXPECT_TRUE(memory.expired());
    loss.backward();
    EXPECT_TRUE(part.grad().defined());
  });
}

// Of a matrix each rank has what it takes of some elements of the input.
TEST(PartFunctionsTest, AMatrixIsPutTogetherInForwardAndInBackward) {
  const Tensor x = Random({kBatch, kTokens, kWidth}, 1);
  const Tensor slope = Random({kBatch, kTokens, kOut}, 2);
  const Tensor whole = Random({kOut, kWidth}, 3).requires_grad_();
  const Tensor bias = Random({kOut}, 4);
  const Tensor expected = torch::linear(x, whole, bias);
  (expected * slope).sum().backward();
  RunThreadRanks(kRanks, [&](Communicator& me) {
    for (const bool is_in_out : {false, true}) {
      const auto part_of = [&](const Tensor& matrix) {
        constexpr int64_t kPart = kWidth / kRanks;
        const Tensor part = matrix.detach().narrow(1, me.rank() * kPart, kPart);
        return (is_in_out ? part.t() : part).contiguous();
      };
      const std::string site = is_in_out ? "in out" : "out in";
      const Tensor part = part_of(whole).requires_grad_();
      const MatrixParts matrix = {part, is_in_out, LineOf(me), site};
      const Tensor in = x.clone().requires_grad_();
      const Tensor out = LinearOfParts(in, nullptr, matrix, bias);
      EXPECT_TRUE(AreClose(out, expected));
      (out * slope).sum().backward();
      // Each rank has computed all of it.
      EXPECT_TRUE(AreClose(part.grad(), kRanks * part_of(whole.grad())));
      EXPECT_TRUE(AreClose(in.grad(), slope.matmul(whole.detach())));
      EXPECT_EQ(OperationsBySite(me).at(site), 3);  // A gather each, and the gradient's sum.
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(AreClose(LinearOfParts(x, nullptr, matrix, bias), expected));
    }
  });
}

TEST(PartFunctionsTest, APartIsReleasedInBackward) {
  RunThreadRanks(kRanks, [&](Communicator& me) {
    const Layers layers(/*first_learns=*/true);
    std::weak_ptr<GatheredParts> parts;
    WeakMemory memory(c10::intrusive_ptr<c10::StorageImpl>{});
    Tensor loss;
    {
      const Tensor leaf = Random({kBatch, kTokens, kWidth}, 1).requires_grad_();
      const Tensor part = leaf * 2;
      memory = MemoryOf(part);
      const Tensor all = GatherParts(part, kInTokens, LineOf(me), "it", parts);
      loss = layers.Forward(all, parts.lock()).sum();
    }
    EXPECT_FALSE(memory.expired());
    loss.backward();
    EXPECT_TRUE(memory.expired());  // The loss, and its graph's nodes, are still there.
  });
}

}  // namespace
}  // namespace gemini::trainer
