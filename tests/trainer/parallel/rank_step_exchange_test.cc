// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_step_exchange.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"

namespace gemini::trainer {
namespace {

using client::kNormBlockElements;
using client::NoExchange;
using client::SquaresByTensor;
using client::TrustSquares;
using ::testing::HasSubstr;
using ::testing::Not;

// A model of random units, with the block squares of each whole tensor.
struct RandomModel {
  RandomModel(uint64_t seed, int64_t num_ranks) : random(seed) {
    const int64_t block = random() % 3 == 0 ? 2 * kNormBlockElements : kNormBlockElements;
    const auto num_units = 1 + random() % 4;
    for (size_t unit = 0; unit < num_units; ++unit) {
      std::vector<int64_t> sizes(1 + random() % 6);
      for (int64_t& size : sizes) {
        size = static_cast<int64_t>(random() % (random() % 2 == 0 ? 100 : 20'000));
      }
      cuts.emplace_back(sizes, num_ranks, block);
      SquaresByTensor& of_unit = squares.emplace_back();
      for (const int64_t size : sizes) {
        of_unit.push_back(Blocks(client::NumNormBlocks(size)));
        if (random() % 4 == 0) of_unit.back().clear();  // Without a gradient.
      }
    }
  }

  std::vector<double> Blocks(int64_t count) {
    std::vector<double> blocks(static_cast<size_t>(count));
    for (double& one : blocks) one = std::exp(std::normal_distribution(0.0, 6.0)(random));
    return blocks;
  }
  // What one process would add up.
  SquaresByTensor Whole() const {
    SquaresByTensor all;
    for (const SquaresByTensor& of_unit : squares) {
      all.insert(all.end(), of_unit.begin(), of_unit.end());
    }
    return all;
  }
  // What a rank has, and one more tensor, which is frozen.
  SquaresByTensor PartOf(int64_t rank) const {
    SquaresByTensor part;
    for (size_t unit = 0; unit < cuts.size(); ++unit) {
      for (const ShardPiece& piece : cuts[unit].PiecesOf(rank)) {
        const std::vector<double>& all = squares[unit][static_cast<size_t>(piece.tensor)];
        if (all.empty()) {
          part.emplace_back();
          continue;
        }
        const auto first = all.begin() + piece.first / kNormBlockElements;
        part.emplace_back(first, first + client::NumNormBlocks(piece.count));
      }
    }
    part.emplace_back();
    return part;
  }
  int64_t SlotsOfARank() const {
    return std::accumulate(cuts.begin(), cuts.end(), int64_t{0},
                           [](int64_t sum, const ShardCut& cut) {
                             return sum + cut.part_elements() / kNormBlockElements;
                           });
  }

  std::mt19937_64 random;
  std::vector<ShardCut> cuts;
  std::vector<SquaresByTensor> squares;  // By unit and tensor.
};

class RankStepExchangeTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, RankStepExchangeTest, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(RankStepExchangeTest, TheNormHasTheBitsOfOneProcess) {
  RunThreadRanks(GetParam(), [](Communicator& me) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const RandomModel model(seed, me.num_ranks());
      RankStepExchange exchange(me, model.cuts);
      const auto expected = NoExchange().AgreeOnNorm(model.Whole());
      EXPECT_EQ(*exchange.AgreeOnNorm(model.PartOf(me.rank())), *expected) << "seed " << seed;
    }
  });
}

// Each has all squares, and no rank needs another's.
TEST(RankStepExchangeReplicasTest, ReplicasAgreeWithoutSendingSquares) {
  RunThreadRanks(4, [](Communicator& me) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const RandomModel model(seed, /*num_ranks=*/1);
      RankStepExchange exchange(me, model.cuts);
      const auto expected = NoExchange().AgreeOnNorm(model.Whole());
      EXPECT_EQ(*exchange.AgreeOnNorm(model.PartOf(0)), *expected) << "seed " << seed;
      std::vector<TrustSquares> squares = {{{1, 2}, {3, 4}}};
      ASSERT_OK(exchange.CompleteTrustSquares(absl::MakeSpan(squares)));
      EXPECT_EQ(squares[0].param, std::vector<double>({1, 2}));
      EXPECT_THAT(exchange.AgreeOnNorm(me.rank() == 2 ? absl::StatusOr<SquaresByTensor>(
                                                            absl::OutOfRangeError("a NaN"))
                                                      : model.PartOf(0)),
                  StatusIs(absl::StatusCode::kOutOfRange, "rank 2: a NaN"));
    }
    const std::vector<SentBytes> sent = me.sent();
    ASSERT_EQ(sent.size(), 1);
    EXPECT_LE(sent[0].bytes, sent[0].operations * 3 * 1024);
  });
}

// Four ranks, of which two share each layer: of every second tensor both have the same.
TEST(RankStepExchangePartsTest, WhatSeveralPartsHaveAlikeCountsOnce) {
  const RankLayout layout(*policies::Mesh::Make(4, {.tensor = 2}),
                          *policies::TensorGrid::Make(policies::TensorMode::k1d, 2));
  for (const int64_t num_shards : {1, 2}) {  // Replicas, and shards.
    RunThreadRanks(4, [&](Communicator& me) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const RandomModel first(seed, num_shards);
        RandomModel second = first;  // The same sizes in the other part.
        RankStepExchange::CountsByTensor counts;
        SquaresByTensor expected;
        for (size_t unit = 0; unit < first.cuts.size(); ++unit) {
          counts.emplace_back();
          for (size_t i = 0; i < first.squares[unit].size(); ++i) {
            std::vector<double>& of_second = second.squares[unit][i];
            const bool is_copy = i % 2 == 1;
            if (!is_copy) of_second = second.Blocks(std::ssize(of_second));
            counts.back().push_back({true, !is_copy});
          }
          // Of each unit one part and then the other.
          for (const RandomModel* const part : {&first, &std::as_const(second)}) {
            for (size_t i = 0; i < part->squares[unit].size(); ++i) {
              if (counts[unit][i][part == &first ? 0 : 1]) {
                expected.push_back(part->squares[unit][i]);
              }
            }
          }
        }
        RankStepExchange exchange(me, layout, first.cuts, counts);
        const int64_t shard = num_shards == 1 ? 0 : me.rank() / 2;
        const RandomModel& own = me.rank() % 2 == 0 ? first : second;
        EXPECT_EQ(*exchange.AgreeOnNorm(own.PartOf(shard)), *NoExchange().AgreeOnNorm(expected))
            << "seed " << seed;
        std::vector<TrustSquares> squares;
        for (std::vector<double>& one : own.PartOf(shard)) squares.push_back({one, one});
        ASSERT_OK(exchange.CompleteTrustSquares(absl::MakeSpan(squares)));
        size_t i = 0;
        for (size_t unit = 0; unit < own.cuts.size(); ++unit) {
          for (const ShardPiece& piece : own.cuts[unit].PiecesOf(shard)) {
            const auto tensor = static_cast<size_t>(piece.tensor);
            std::vector<double> whole = first.squares[unit][tensor];
            if (tensor % 2 == 0) {
              const std::vector<double>& rest = second.squares[unit][tensor];
              whole.insert(whole.end(), rest.begin(), rest.end());
            }
            EXPECT_EQ(squares[i].param, whole);
            EXPECT_EQ(squares[i++].direction, whole);
          }
        }
      }
    });
  }
}

// Two pipelines of two ranks, which have every second unit each, and both have the first.
TEST(RankStepExchangePipelineTest, TheNormHasTheBitsOfOneProcess) {
  const RankLayout layout(*policies::Mesh::Make(4, {.pipeline = 2}), policies::TensorGrid());
  RunThreadRanks(4, [&](Communicator& me) {
    const int64_t stage = layout.pipeline_rank(me.rank());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const RandomModel model(seed, /*num_ranks=*/2);
      RankStepExchange::CountsByTensor counts;
      std::vector<bool> is_here;
      SquaresByTensor own;
      std::vector<std::vector<double>> whole;  // Of the tensors of this rank's pieces.
      for (size_t unit = 0; unit < model.cuts.size(); ++unit) {
        const int64_t owner = static_cast<int64_t>(unit) % 2;
        is_here.push_back(stage == owner || unit == 0);
        counts.emplace_back(model.squares[unit].size(), std::vector<bool>{owner == 0, owner == 1});
        if (!is_here.back()) continue;
        for (const ShardPiece& piece : model.cuts[unit].PiecesOf(layout.data(me.rank()))) {
          const std::vector<double>& blocks =
              model.squares[unit][static_cast<size_t>(piece.tensor)];
          whole.push_back(blocks);
          std::vector<double>& part = own.emplace_back();
          if (blocks.empty()) continue;
          const auto begin = blocks.begin() + piece.first / kNormBlockElements;
          part.assign(begin, begin + client::NumNormBlocks(piece.count));
        }
      }
      RankStepExchange exchange(me, layout, model.cuts, counts, is_here);
      const auto norm = exchange.AgreeOnNorm(own);
      ASSERT_OK(norm);
      EXPECT_EQ(*norm, *NoExchange().AgreeOnNorm(model.Whole())) << "seed " << seed;
      std::vector<TrustSquares> squares;
      for (const std::vector<double>& one : own) squares.push_back({one, one});
      ASSERT_OK(exchange.CompleteTrustSquares(absl::MakeSpan(squares)));
      for (size_t i = 0; i < squares.size(); ++i) {
        EXPECT_EQ(squares[i].param, whole[i]);
        EXPECT_EQ(squares[i].direction, whole[i]);
      }
    }
  });
}

TEST_P(RankStepExchangeTest, TrustSquaresAreThoseOfTheWholeTensor) {
  RunThreadRanks(GetParam(), [](Communicator& me) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      RandomModel model(seed, me.num_ranks());
      RandomModel other = model;  // Of the directions.
      for (SquaresByTensor& unit : other.squares) {
        for (std::vector<double>& tensor : unit) tensor = other.Blocks(std::ssize(tensor));
      }
      RankStepExchange exchange(me, model.cuts);
      std::vector<TrustSquares> squares;
      const SquaresByTensor params = model.PartOf(me.rank());
      const SquaresByTensor directions = other.PartOf(me.rank());
      for (size_t i = 0; i < params.size(); ++i) squares.push_back({params[i], directions[i]});
      ASSERT_OK(exchange.CompleteTrustSquares(absl::MakeSpan(squares)));
      size_t i = 0;
      for (size_t unit = 0; unit < model.cuts.size(); ++unit) {
        for (const ShardPiece& piece : model.cuts[unit].PiecesOf(me.rank())) {
          const auto tensor = static_cast<size_t>(piece.tensor);
          EXPECT_EQ(squares[i].param, model.squares[unit][tensor]);
          EXPECT_EQ(squares[i++].direction, other.squares[unit][tensor]);
        }
      }
    }
  });
}

TEST_P(RankStepExchangeTest, WhatOneRankCannotDoNoRankDoes) {
  RunThreadRanks(GetParam(), [](Communicator& me) {
    const RandomModel model(7, me.num_ranks());
    RankStepExchange exchange(me, model.cuts);
    const int64_t last = me.num_ranks() - 1;
    const auto agree = [&](const absl::Status& of_first, const absl::Status& of_last) {
      const absl::Status& status = me.rank() == last ? of_last : of_first;
      const bool is_fine = status.ok() || (me.rank() != 0 && me.rank() != last);
      return is_fine ? exchange.AgreeOnNorm(model.PartOf(me.rank())) : exchange.AgreeOnNorm(status);
    };
    // One rank alone needs no number.
    const std::string rank = last > 0 ? absl::StrCat("rank ", last, ": ") : "";
    EXPECT_THAT(agree(absl::OkStatus(), absl::OutOfRangeError("x holds a NaN")),
                StatusIs(absl::StatusCode::kOutOfRange, rank + "x holds a NaN"));
    // What ends the job goes before what may be skipped.
    EXPECT_THAT(agree(absl::OutOfRangeError("x holds a NaN"), absl::DataLossError("a disk")),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(rank + "a disk")));
    const std::string text(3000, 'a');
    EXPECT_THAT(agree(absl::OkStatus(), absl::AbortedError(text)),
                StatusIs(absl::StatusCode::kAborted, rank + text.substr(0, 493) + "..."));
    EXPECT_OK(agree(absl::OkStatus(), absl::OkStatus()));
  });
}

TEST_P(RankStepExchangeTest, WithoutAGradientAnywhereThereIsNoNorm) {
  RunThreadRanks(GetParam(), [](Communicator& me) {
    const RandomModel model(7, me.num_ranks());
    RankStepExchange exchange(me, model.cuts);
    EXPECT_THAT(exchange.AgreeOnNorm(SquaresByTensor()), IsOkAndHolds(std::nullopt));
  });
}

TEST_P(RankStepExchangeTest, SaysWhetherTheRanksRefusedTheLastStep) {
  RunThreadRanks(GetParam(), [](Communicator& me) {
    const RandomModel model(7, me.num_ranks());
    RankStepExchange exchange(me, model.cuts);
    EXPECT_FALSE(exchange.refused());
    absl::StatusOr<client::SquaresByTensor> own = model.PartOf(me.rank());
    if (me.rank() == me.num_ranks() - 1) own = absl::OutOfRangeError("a NaN");
    EXPECT_THAT(exchange.AgreeOnNorm(own), StatusIs(absl::StatusCode::kOutOfRange));
    EXPECT_TRUE(exchange.refused());
    ASSERT_OK(exchange.AgreeOnNorm(model.PartOf(me.rank())));
    EXPECT_FALSE(exchange.refused());
  });
}

TEST_P(RankStepExchangeTest, SendsEightBytesABlockAndAHeader) {
  std::atomic<int64_t> header_bytes = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    RunThreadRanks(GetParam(), [&](Communicator& me) {
      const RandomModel model(seed, me.num_ranks());
      RankStepExchange exchange(me, model.cuts);
      ASSERT_OK(exchange.AgreeOnNorm(model.PartOf(me.rank())));
      std::vector<TrustSquares> none;
      ASSERT_OK(exchange.CompleteTrustSquares(absl::MakeSpan(none)));
      const std::vector<SentBytes> sent = me.sent();
      ASSERT_EQ(sent.size(), 2);
      const int64_t others = me.num_ranks() - 1;
      EXPECT_EQ(sent[0].site, "norm");
      const int64_t beside = sent[0].bytes - 8 * model.SlotsOfARank() * others;
      EXPECT_EQ(beside % std::max<int64_t>(others, 1), 0);
      EXPECT_LE(beside, 1024 * others);
      EXPECT_THAT(header_bytes.exchange(beside), ::testing::AnyOf(0, beside));
      EXPECT_EQ(sent[1].site, "trust ratios");
      EXPECT_EQ(sent[1].bytes, 16 * model.SlotsOfARank() * others);
    });
  }
}

TEST(RankStepExchangePairTest, RanksThatIssuedDifferentCollectivesAreNamed) {
  RunThreadRanks(4, [](Communicator& me) {
    const RandomModel model(7, me.num_ranks());
    RankStepExchange exchange(me, model.cuts);
    auto pairs = me.MakeGroup("pairs", {{0, 2}, {1, 3}});
    ASSERT_OK(pairs);
    std::byte bytes[16] = {};
    // Messages are not the same in all ranks, and need not be.
    if (me.rank() == 0) {
      ASSERT_OK(me.Send(me.world(), bytes, 4, 1, 0, "one")->Wait());
    } else if (me.rank() == 1) {
      ASSERT_OK(me.Receive(me.world(), bytes, 4, 0, 0, "one")->Wait());
    }
    // Nor do two groups of one name exchange the same.
    const int64_t size = me.rank() % 2 == 0 ? 4 : 8;
    ASSERT_OK(me.AllGather(**pairs, bytes, bytes + 8 - size / 2, size / 2, "x")->Wait());
    ASSERT_OK(exchange.AgreeOnNorm(model.PartOf(me.rank())));
    // As many bytes, but meant for something else.
    ASSERT_OK(me.AllGather(**pairs, bytes, bytes + 8, 4, me.rank() == 3 ? "y" : "x")->Wait());
    // Also ranks of other groups do not take the step, and all know what a rank had to say.
    const auto different = StatusIs(absl::StatusCode::kInternal,
                                    HasSubstr("ranks 1 and 3 issued different collectives"));
    EXPECT_THAT(exchange.AgreeOnNorm(model.PartOf(me.rank())), different);
    EXPECT_THAT(exchange.AgreeOnNorm(me.rank() == 3 ? absl::StatusOr<SquaresByTensor>(
                                                          absl::DataLossError("a chunk is gone"))
                                                    : model.PartOf(me.rank())),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 3: a chunk is gone")));
  });
}

// What the exchange sends and receives stays, for the others may still write to it.
TEST(RankStepExchangePairTest, AStepToWhichARankDoesNotComeEnds) {
  RunThreadRanks(2, [](Communicator& me) {
    if (me.rank() == 1) return;  // It never comes.
    const RandomModel model(7, me.num_ranks());
    RankStepExchange exchange(me, model.cuts);
    EXPECT_THAT(exchange.AgreeOnNorm(model.PartOf(0)),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 is gone")));
  });
}

TEST(RankStepExchangePairTest, SquaresThatAreNoPiecesAreAnErrorOfAll) {
  RunThreadRanks(2, [](Communicator& me) {
    const RandomModel model(7, me.num_ranks());
    RankStepExchange exchange(me, model.cuts);
    SquaresByTensor part = model.PartOf(me.rank());
    if (me.rank() == 1) part.back() = {1};  // The frozen one.
    EXPECT_THAT(exchange.AgreeOnNorm(part),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1: tensor")));
  });
}

}  // namespace
}  // namespace gemini::trainer
