// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/mpi_rank.h"

#include <cstdio>
#include <memory>

#include "gtest/gtest.h"
#include "trainer/parallel/communicator_host.h"
#include "trainer/parallel/rank_environment.h"
#include "trainer/parallel/rank_transport_mpi.h"

namespace gemini::trainer {
namespace {

Communicator* this_rank = nullptr;

}  // namespace

Communicator& ThisRank() { return *this_rank; }

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
  this_rank = made->get();
  return RUN_ALL_TESTS();
}
