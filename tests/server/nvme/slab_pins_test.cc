// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/slab_pins.h"

#include <sys/stat.h>

#include "gemini/layout.h"
#include "gemini/system/unique_fd.h"
#include "server/tiers/sealed_memfd.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kWindow = SlabPins::kWindowBytes;
constexpr int64_t kSlabBytes = kWindow + 2 * kPageBytes;  // The second window is short.

class SlabPinsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int error = io_uring_queue_init(8, &ring_, 0);
    if (error < 0) GTEST_SKIP() << "no io_uring here: " << -error;
    open_ = true;
    // Without pages, as a slab that was swapped out, or whose pages its client gave back.
    ASSERT_OK_AND_ASSIGN(slab_, MakeSealedMemfd("slab", kSlabBytes, MemfdPages::kOnDemand));
  }
  void TearDown() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  int64_t PageBytes() {
    struct stat info;
    EXPECT_EQ(::fstat(slab_.get(), &info), 0);
    return info.st_blocks * 512;
  }

  io_uring ring_ = {};
  bool open_ = false;
  UniqueFd slab_;
};

// The thread that uses the ring waits for no page that is swapped out.
TEST_F(SlabPinsTest, AWindowIsRegisteredWhenAnotherThreadHasMadeItsPages) {
  SlabPins pins(ring_);
  EXPECT_FALSE(pins.Find(slab_.get(), kPageBytes).has_value());
  EXPECT_EQ(PageBytes(), 0);
  EXPECT_TRUE(pins.WantsPages(slab_.get(), kPageBytes));
  EXPECT_FALSE(pins.WantsPages(slab_.get(), 2 * kPageBytes));  // Another piece of the window.
  EXPECT_FALSE(pins.Find(slab_.get(), kPageBytes).has_value());
  SlabPins::MakePages(slab_.get(), kPageBytes);
  EXPECT_GE(PageBytes(), kWindow);
  pins.SetPages(slab_.get(), kPageBytes, /*made=*/true);
  EXPECT_TRUE(pins.Find(slab_.get(), kPageBytes).has_value());
  EXPECT_TRUE(pins.Find(slab_.get(), 0).has_value());
  EXPECT_EQ(pins.windows_made(), 1);
  EXPECT_FALSE(pins.Find(slab_.get(), kWindow).has_value());
}

TEST_F(SlabPinsTest, AWindowWhosePagesNobodyMadeWantsThemAgain) {
  SlabPins pins(ring_);
  EXPECT_TRUE(pins.WantsPages(slab_.get(), 0));
  pins.SetPages(slab_.get(), 0, /*made=*/false);
  EXPECT_FALSE(pins.Find(slab_.get(), 0).has_value());
  EXPECT_TRUE(pins.WantsPages(slab_.get(), 0));
}

TEST_F(SlabPinsTest, TheLastWindowMayBeShort) {
  SlabPins pins(ring_);
  ASSERT_TRUE(pins.WantsPages(slab_.get(), kWindow + kPageBytes));
  SlabPins::MakePages(slab_.get(), kWindow + kPageBytes);
  EXPECT_GE(PageBytes(), 2 * kPageBytes);
  pins.SetPages(slab_.get(), kWindow + kPageBytes, /*made=*/true);
  EXPECT_TRUE(pins.Find(slab_.get(), kWindow).has_value());
  // There is no such place.
  EXPECT_FALSE(pins.WantsPages(slab_.get(), 2 * kWindow));
  EXPECT_FALSE(pins.Find(slab_.get(), 2 * kWindow).has_value());
}

}  // namespace
}  // namespace gemini::server
