// SPDX-License-Identifier: Apache-2.0
#include "gemini/ids.h"

#include <set>
#include <type_traits>

#include "gemini/chunk_kind.h"
#include "gtest/gtest.h"

namespace gemini {
namespace {

static_assert(!std::is_convertible_v<int64_t, ChunkId> && !std::is_convertible_v<ChunkId, SlotId>);

TEST(IdsTest, BundleAndKindNameExactlyOneChunkAndComeBack) {
  std::set<ChunkId> chunks;
  for (int64_t bundle = 0; bundle < 100; ++bundle) {
    for (const ChunkKind kind : kAllChunkKinds) {
      const ChunkId chunk = ChunkOf(BundleId(bundle), kind);
      EXPECT_EQ(BundleOf(chunk), BundleId(bundle));
      EXPECT_EQ(KindOf(chunk), kind);
      chunks.insert(chunk);
    }
  }
  EXPECT_EQ(chunks.size(), size_t{100 * kNumChunkKinds});
  EXPECT_EQ(chunks.begin()->value(), 0);
  EXPECT_EQ(chunks.rbegin()->value(), 100 * kNumChunkKinds - 1);
}

TEST(IdsTest, AnIdThatWasNeverSetIsNoValidOne) { EXPECT_LT(ChunkId().value(), 0); }

TEST(IdsTest, KindsHaveTheirNames) {
  EXPECT_EQ(ChunkKindName(ChunkKind::kParam), "param");
  EXPECT_EQ(ChunkKindName(ChunkKind::kGrad), "grad");
  EXPECT_EQ(ChunkKindName(ChunkKind::kExpAvgSqUpper), "exp_avg_sq_upper");
}

}  // namespace
}  // namespace gemini
