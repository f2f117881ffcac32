// SPDX-License-Identifier: Apache-2.0
// One rank of several, started by mpirun: all of them run all tests, in one order. Without a
// launcher the job is of one rank.
#include "trainer/parallel/rank_transport_mpi.h"

#include <cstdio>
#include <memory>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/communicator_conformance.h"
#include "trainer/parallel/communicator_host.h"
#include "trainer/parallel/rank_environment.h"

namespace gemini::trainer {
namespace {

Communicator* me = nullptr;

TEST(RankTransportMpiTest, RandomExchangesAreTheModels) {
  ExpectRandomExchanges(*me, /*seed=*/static_cast<uint64_t>(me->num_ranks()), 300);
}

TEST(RankTransportMpiTest, LargeSumsGoBySlices) { ExpectLargeSums(*me); }

TEST(RankTransportMpiTest, MessagesMayCross) {
  if (me->num_ranks() > 1) ExpectCrossedMessages(*me);
}

TEST(RankTransportMpiTest, WhatIsSentIsCounted) { ExpectCounts(*me); }

TEST(RankTransportMpiTest, AModuleThatIsNotThereIsNamed) {
  EXPECT_THAT(MakeMpiTransport("/nonexistent/gemini_mpi.so", 0, 2),
              StatusIs(absl::StatusCode::kNotFound,
                       ::testing::AllOf(::testing::HasSubstr("/nonexistent/gemini_mpi.so"),
                                        ::testing::HasSubstr("openmpi-bin"))));
}

}  // namespace
}  // namespace gemini::trainer

int main(int argc, char** argv) {
  using namespace gemini::trainer;
  ::testing::InitGoogleTest(&argc, argv);
  const auto where = ReadRankEnvironment();
  if (!where.ok()) {
    std::fprintf(stderr, "%s\n", where.status().ToString().c_str());
    return 1;
  }
  auto made = CommunicatorHost::Make(where->rank, where->num_ranks, [&] {
    return MakeMpiTransport(GEMINI_MPI_MODULE, where->rank, where->num_ranks);
  });
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    return 1;
  }
  me = made->get();
  return RUN_ALL_TESTS();
}
