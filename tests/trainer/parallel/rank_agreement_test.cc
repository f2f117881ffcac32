// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_agreement.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

TEST(RankAgreementTest, AllRanksLearnWhatOneFound) {
  RunThreadRanks(3, [](Communicator& me) {
    const RankAgreement ranks(me);
    EXPECT_OK(ranks.Agree(absl::OkStatus()));
    const absl::Status one =
        ranks.Agree(me.rank() == 1 ? absl::NotFoundError("no file") : absl::OkStatus());
    EXPECT_THAT(one, StatusIs(absl::StatusCode::kNotFound, "rank 1: no file"));
    EXPECT_TRUE(IsAgreed(one));
    // What all say alike needs no number.
    EXPECT_THAT(ranks.Agree(absl::NotFoundError("no file")),
                StatusIs(absl::StatusCode::kNotFound, "no file"));
    EXPECT_THAT(ranks.Agree(me.rank() == 0 ? absl::OkStatus()
                                           : absl::NotFoundError(std::to_string(me.rank()))),
                StatusIs(absl::StatusCode::kNotFound, "rank 1: 1 (2 ranks failed)"));
    // An overflow is no worse than what is no overflow.
    EXPECT_THAT(ranks.Agree(me.rank() == 2 ? absl::InternalError("a fault")
                                           : absl::OutOfRangeError("a NaN")),
                StatusIs(absl::StatusCode::kInternal, "rank 2: a fault (3 ranks failed)"));
  });
}

TEST(RankAgreementTest, NumbersAndTextsAreExchanged) {
  RunThreadRanks(3, [](Communicator& me) {
    const RankAgreement ranks(me);
    EXPECT_THAT(ranks.Gather(me.rank() * 10, "tens"), IsOkAndHolds(ElementsAre(0, 10, 20)));
    EXPECT_THAT(ranks.TextOfFirst(std::string(static_cast<size_t>(me.rank() + 2) * 1000, 'x')),
                IsOkAndHolds(std::string(2000, 'x')));
    EXPECT_THAT(ranks.TextOfFirst(""), IsOkAndHolds(""));
  });
}

TEST(RankAgreementTest, OneRankAgreesWithItself) {
  const RankAgreement alone;
  EXPECT_TRUE(alone.is_alone() && alone.is_first());
  EXPECT_OK(alone.Agree(absl::OkStatus()));
  EXPECT_THAT(alone.Agree(absl::NotFoundError("no file")),
              StatusIs(absl::StatusCode::kNotFound, "no file"));
  EXPECT_THAT(alone.Gather(7, "x"), IsOkAndHolds(ElementsAre(7)));
  EXPECT_THAT(alone.TextOfFirst("text"), IsOkAndHolds("text"));
}

TEST(RankVerdictTest, ALongMessageIsCut) {
  const absl::Status status =
      RankVerdict(absl::InternalError(std::string(2000, 'x') + "end")).ToStatus();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()), EndsWith("xxx..."));
  EXPECT_LE(status.message().size(), 500);
}

// The bytes are another rank's.
TEST(RankVerdictTest, WhateverTheBytesHoldIsAStatus) {
  for (const int byte : {0x01, 0x7f, 0x80, 0xff}) {
    RankVerdict verdict;
    std::memset(static_cast<void*>(&verdict), byte, sizeof(verdict));
    const absl::Status status = verdict.ToStatus();
    EXPECT_FALSE(status.ok());
    EXPECT_LE(status.message().size(), sizeof(verdict));
  }
}

}  // namespace
}  // namespace gemini::trainer
