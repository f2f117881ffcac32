// SPDX-License-Identifier: Apache-2.0
#include "client/plan/round_names.h"

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

class RoundNamesTest : public ::testing::Test {
 protected:
  RoundNamesTest() {
    names_.AddSpace("generator");
    names_.AddSpace("critic");
  }
  // Returns whether spaces take turns.
  bool Update(int32_t space) {
    names_.BeginUpdate(space);
    return names_.EndUpdate();
  }
  std::string Train(int32_t space) { return names_.OfRound(/*evaluates=*/false, space); }

  RoundNames names_;
};

TEST_F(RoundNamesTest, OneModelAloneIsNotNamedForItsUpdates) {
  EXPECT_EQ(Train(0), "train");
  EXPECT_EQ(names_.OfRound(/*evaluates=*/true, 1), "eval-critic");
  for (int step = 0; step < 3; ++step) EXPECT_FALSE(Update(0));
  EXPECT_EQ(Train(0), "train");
  EXPECT_EQ(names_.BeginUpdate(1), "update-critic");
}

TEST_F(RoundNamesTest, WhereModelsTakeTurnsTheUpdateBeforeIsNamed) {
  Update(0);
  EXPECT_TRUE(Update(1));
  EXPECT_EQ(Train(0), "train-after-critic");
  EXPECT_EQ(names_.OfRound(/*evaluates=*/true, 0), "eval");
  EXPECT_TRUE(Update(1));
  EXPECT_EQ(Train(1), "train-critic-after-critic*2");
  for (int step = 0; step < 29; ++step) Update(1);
  EXPECT_EQ(Train(1), "train-critic-after-critic*31");
  for (int step = 0; step < 20; ++step) Update(1);
  EXPECT_EQ(Train(1), "train-critic-after-critic*32");
  EXPECT_TRUE(Update(0));
  EXPECT_EQ(Train(1), "train-critic-after-generator");
}

TEST_F(RoundNamesTest, PushedNamesNestAndWin) {
  names_.Pop();  // There is none.
  names_.Push("outer");
  names_.Push("inner");
  EXPECT_EQ(Train(1), "inner");
  names_.Pop();
  EXPECT_EQ(names_.OfRound(/*evaluates=*/true, 0), "outer");
  names_.Pop();
  EXPECT_FALSE(names_.has_pushed());
  EXPECT_EQ(Train(0), "train");
}

}  // namespace
}  // namespace gemini::client
