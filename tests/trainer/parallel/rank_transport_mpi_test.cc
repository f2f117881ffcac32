// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_transport_mpi.h"

#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/communicator_conformance.h"
#include "tests/trainer/parallel/mpi_rank.h"

namespace gemini::trainer {
namespace {

TEST(RankTransportMpiTest, RandomExchangesAreTheModels) {
  ExpectRandomExchanges(ThisRank(), /*seed=*/static_cast<uint64_t>(ThisRank().num_ranks()), 300);
}

TEST(RankTransportMpiTest, LargeSumsGoBySlices) { ExpectLargeSums(ThisRank()); }

TEST(RankTransportMpiTest, MessagesMayCross) {
  if (ThisRank().num_ranks() > 1) ExpectCrossedMessages(ThisRank(), /*by_tags=*/true);
}

TEST(RankTransportMpiTest, WhatIsSentIsCounted) { ExpectCounts(ThisRank()); }

TEST(RankTransportMpiTest, AModuleThatIsNotThereIsNamed) {
  EXPECT_THAT(MakeMpiTransport("/nonexistent/gemini_mpi.so", 0, 2),
              StatusIs(absl::StatusCode::kNotFound,
                       ::testing::AllOf(::testing::HasSubstr("/nonexistent/gemini_mpi.so"),
                                        ::testing::HasSubstr("openmpi-bin"))));
}

}  // namespace
}  // namespace gemini::trainer
