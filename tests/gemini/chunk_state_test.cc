// SPDX-License-Identifier: Apache-2.0
#include "gemini/chunk_state.h"

#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(ChunkStateTest, ExactlyTheFiveChangesOfTheDesignAreLegal) {
  using enum ChunkState;
  const std::set<std::pair<ChunkState, ChunkState>> legal = {
      {kFree, kHold}, {kHold, kCompute}, {kCompute, kHold}, {kHold, kFree}, {kHold, kHold}};
  for (const ChunkState from : {kFree, kHold, kCompute}) {
    for (const ChunkState to : {kFree, kHold, kCompute}) {
      EXPECT_EQ(IsLegalChange(from, to), legal.contains({from, to}))
          << ChunkStateName(from) << " to " << ChunkStateName(to);
    }
  }
}

TEST(ChunkStateTest, NamesAreTheArchitecturesWords) {
  EXPECT_EQ(ChunkStateName(ChunkState::kFree), "FREE");
  EXPECT_EQ(ChunkStateName(ChunkState::kHold), "HOLD");
  EXPECT_EQ(ChunkStateName(ChunkState::kCompute), "COMPUTE");
}

}  // namespace
}  // namespace gemini
