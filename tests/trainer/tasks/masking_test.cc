// SPDX-License-Identifier: Apache-2.0
#include "trainer/tasks/masking.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gemini/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

constexpr MaskTokens kTokens = {.mask = 103, .vocab_size = 1'000'000};

struct MaskedRow {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;  // At first each candidate's token.
  int64_t count = 0;
  bool operator==(const MaskedRow&) const = default;
};

// Token i of a row of `length` is 2,000 + i; those of which `is_candidate` says so may be hidden.
template <typename IsCandidate>
MaskedRow Mask(const MaskDraw& draw, size_t length, IsCandidate is_candidate,
               const MaskTokens& tokens = kTokens) {
  MaskedRow row;
  for (size_t i = 0; i < length; ++i) {
    row.tokens.push_back(2'000 + static_cast<int64_t>(i));
    row.labels.push_back(is_candidate(i) ? row.tokens.back() : -1);
  }
  row.count = MaskTokensOfRow(draw, tokens, absl::MakeSpan(row.tokens), absl::MakeSpan(row.labels));
  return row;
}
bool All(size_t /*position*/) { return true; }
bool None(size_t /*position*/) { return false; }

std::set<size_t> PredictedOf(const MaskedRow& row) {
  std::set<size_t> positions;
  for (size_t i = 0; i < row.labels.size(); ++i) {
    if (row.labels[i] >= 0) positions.insert(i);
  }
  return positions;
}

TEST(MaskingTest, ADrawHidesTheSameWhateverWasDrawnBefore) {
  std::vector<MaskedRow> forwards, backwards;
  for (int64_t row = 0; row < 20; ++row) forwards.push_back(Mask({7, row}, 100, All));
  for (int64_t row = 19; row >= 0; --row) backwards.push_back(Mask({7, row}, 100, All));
  std::ranges::reverse(backwards);
  EXPECT_EQ(forwards, backwards);
}

TEST(MaskingTest, OtherRowsSeedsAndEvaluationHideOthers) {
  std::set<std::set<size_t>> sets;
  const std::vector<MaskDraw> draws = {{7, 3},
                                       {7, 4},
                                       {7, 3 + (int64_t{1} << 32)},
                                       {8, 3},
                                       {7 + (uint64_t{1} << 32), 3},
                                       {7, 3, true},
                                       {3, 7},
                                       {0, 0}};
  for (const MaskDraw& draw : draws) sets.insert(PredictedOf(Mask(draw, 200, All)));
  EXPECT_EQ(sets.size(), draws.size());
}

TEST(MaskingTest, APositionIsDrawnWithoutTheOthers) {
  const auto is_even = [](size_t i) { return i % 2 == 0; };
  const MaskedRow all = Mask({7, 3}, 200, All), even = Mask({7, 3}, 200, is_even);
  ASSERT_GT(even.count, 0);
  for (size_t i = 0; i < 200; i += 2) {
    EXPECT_EQ(even.tokens[i], all.tokens[i]) << i;
    EXPECT_EQ(even.labels[i], all.labels[i]) << i;
  }
}

TEST(MaskingTest, OnlyCandidatesAreTouchedAndLabelsHoldTheirTokens) {
  const auto is_third = [](size_t i) { return i % 3 == 0; };
  for (int64_t row = 0; row < 50; ++row) {
    const MaskedRow masked = Mask({1, row}, 90, is_third);
    EXPECT_EQ(masked.count, static_cast<int64_t>(PredictedOf(masked).size()));
    for (size_t i = 0; i < 90; ++i) {
      const int64_t token = 2'000 + static_cast<int64_t>(i);
      if (masked.labels[i] < 0) {
        EXPECT_EQ(masked.labels[i], -1);
        EXPECT_EQ(masked.tokens[i], token);
      } else {
        EXPECT_TRUE(is_third(i)) << i;
        EXPECT_EQ(masked.labels[i], token);
      }
    }
  }
}

// Each share is within four standard deviations of its binomial distribution.
TEST(MaskingTest, SharesAreThoseOfThePaper) {
  const auto expect_share = [](const char* what, int64_t count, int64_t of, double share) {
    const auto trials = static_cast<double>(of);
    EXPECT_NEAR(static_cast<double>(count), share * trials,
                4 * std::sqrt(trials * share * (1 - share)))
        << what;
  };
  constexpr int64_t kRows = 800, kLength = 500;
  int64_t hidden = 0, masked = 0, kept = 0, others = 0;
  double sum_of_others = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const MaskedRow drawn = Mask({11, row}, kLength, All);
    for (const size_t i : PredictedOf(drawn)) {
      ++hidden;
      if (drawn.tokens[i] == kTokens.mask) {
        ++masked;
      } else if (drawn.tokens[i] == drawn.labels[i]) {
        ++kept;
      } else {
        ++others;
        sum_of_others += static_cast<double>(drawn.tokens[i]);
      }
    }
  }
  expect_share("hidden", hidden, kRows * kLength, 0.15);
  expect_share("the mask token", masked, hidden, 0.8);
  expect_share("others", others, hidden, 0.1);
  expect_share("kept", kept, hidden, 0.1);
  const auto size = static_cast<double>(kTokens.vocab_size);
  EXPECT_NEAR(sum_of_others / static_cast<double>(others), size / 2,
              4 * size / std::sqrt(12 * static_cast<double>(others)));
}

TEST(MaskingTest, OtherTokensAreAllThatTheVocabularyHas) {
  std::set<int64_t> drawn;
  for (int64_t row = 0; row < 200; ++row) {
    const MaskedRow masked = Mask({5, row}, 100, All, {.mask = 1'000, .vocab_size = 3});
    for (const size_t i : PredictedOf(masked)) {
      if (masked.tokens[i] < 1'000) drawn.insert(masked.tokens[i]);
    }
  }
  EXPECT_THAT(drawn, ElementsAreArray({0, 1, 2}));
}

// What is drawn is a part of the run's bits: another counter would change every run.
TEST(MaskingTest, WhereNoneIsDrawnTheLeastIsPredicted) {
  int num_forced = 0;
  const auto is_candidate = [](size_t i) { return i >= 2 && i % 2 == 0; };
  for (int64_t row = 0; row < 200; ++row) {
    for (const bool is_evaluation : {false, true}) {
      std::set<size_t> below;
      size_t least = 2;
      std::vector<uint32_t> draws;
      for (size_t i = 0; i < 9; ++i) {
        draws.push_back(Philox(
            {static_cast<uint32_t>(row), 0, static_cast<uint32_t>(i), is_evaluation ? 1u : 0u},
            /*key=*/9)[0]);
        if (!is_candidate(i)) continue;
        if (draws[i] < 0.15 * 4294967296) below.insert(i);
        if (draws[i] < draws[least]) least = i;
      }
      num_forced += below.empty() ? 1 : 0;
      const MaskedRow masked = Mask({9, row, is_evaluation}, 9, is_candidate);
      EXPECT_EQ(PredictedOf(masked), below.empty() ? std::set<size_t>{least} : below);
      EXPECT_EQ(masked.count, static_cast<int64_t>(PredictedOf(masked).size()));
      for (const size_t i : PredictedOf(masked)) {
        EXPECT_EQ(masked.labels[i], 2'000 + static_cast<int64_t>(i));
      }
    }
  }
  EXPECT_GT(num_forced, 100);  // 0.85 to the power of 4 is 0.52.
}

// It becomes the mask token as often as others do, too.
TEST(MaskingTest, TheOnlyCandidateIsAlwaysPredicted) {
  int64_t masked = 0;
  constexpr int64_t kRows = 4'000;
  for (int64_t row = 0; row < kRows; ++row) {
    const MaskedRow drawn = Mask({2, row}, 5, [](size_t i) { return i == 3; });
    ASSERT_EQ(drawn.count, 1);
    ASSERT_EQ(drawn.labels[3], 2'003);
    masked += drawn.tokens[3] == kTokens.mask ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(masked), 0.8 * kRows, 4 * std::sqrt(kRows * 0.8 * 0.2));
}

TEST(MaskingTest, WithoutACandidateNothingIsPredicted) {
  const MaskedRow row = Mask({7, 3}, 50, None);
  EXPECT_EQ(row.count, 0);
  EXPECT_THAT(row.labels, Each(-1));
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ(row.tokens[i], 2'000 + static_cast<int64_t>(i));
  EXPECT_EQ(Mask({7, 3}, 0, None).count, 0);
}

}  // namespace
}  // namespace gemini::trainer
