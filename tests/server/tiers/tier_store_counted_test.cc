// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_counted.h"

#include <unistd.h>

#include <utility>

#include "gemini/byte_size.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kSlab = 64 * kMiB;

TEST(CountedTierStoreTest, CountsSlabsThatOthersMake) {
  const std::unique_ptr<TierStore> store = MakeCountedTierStore("a GPU", 4 * kSlab, kSlab);
  EXPECT_FALSE(store->shares_memory());
  EXPECT_EQ(store->gpu_uuid(), "a GPU");
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store->Make(kSlab, 3));
  ASSERT_EQ(grant.extents.size(), 3u);
  EXPECT_EQ(grant.size_bytes(), 3 * kSlab);
  EXPECT_EQ(store->granted_bytes(), 3 * kSlab);
  for (const TierExtent& extent : grant.extents) {
    EXPECT_EQ(extent.num_slots, 1);
    EXPECT_EQ(::ftruncate(extent.fd.get(), kSlab), -1);  // It goes to clients.
    EXPECT_EQ(::write(extent.fd.get(), "x", 1), -1);
  }
  EXPECT_THAT(store->Make(kSlab, 2), StatusIs(absl::StatusCode::kResourceExhausted));
  store->Destroy(std::move(grant));
  EXPECT_EQ(store->granted_bytes(), 0);
}

}  // namespace
}  // namespace gemini::server
