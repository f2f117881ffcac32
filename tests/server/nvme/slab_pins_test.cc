// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/slab_pins.h"

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
    ASSERT_OK_AND_ASSIGN(slab_, MakeSealedMemfd("slab", kSlabBytes, MemfdPages::kAllocated));
  }
  void TearDown() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  io_uring ring_ = {};
  bool open_ = false;
  UniqueFd slab_;
};

TEST_F(SlabPinsTest, AWindowIsRegisteredOnceAtItsFirstUse) {
  SlabPins pins(ring_);
  ASSERT_TRUE(pins.Find(slab_.get(), kPageBytes).has_value());
  EXPECT_EQ(pins.Find(slab_.get(), 2 * kPageBytes)->address,
            pins.Find(slab_.get(), kPageBytes)->address + kPageBytes);
  EXPECT_EQ(pins.windows_made(), 1);
  EXPECT_TRUE(pins.Find(slab_.get(), kWindow + kPageBytes).has_value());
  EXPECT_EQ(pins.windows_made(), 2);
  EXPECT_FALSE(pins.Find(slab_.get(), 2 * kWindow).has_value());  // There is no such place.
}

// The thread that uses the ring serves everybody: it waits for no disk that pages are read from.
TEST_F(SlabPinsTest, AWindowIsRegisteredWhenNoneOfItsPagesIsSwappedOut) {
  static bool is_swapped_out;
  is_swapped_out = true;
  SlabPins pins(ring_, [](int, int64_t offset_bytes, int64_t size_bytes) {
    EXPECT_EQ(offset_bytes % kWindow, 0);
    EXPECT_EQ(size_bytes, offset_bytes == 0 ? kWindow : kSlabBytes - kWindow);
    return is_swapped_out;
  });
  EXPECT_FALSE(pins.Find(slab_.get(), kPageBytes).has_value());
  EXPECT_FALSE(pins.Find(slab_.get(), kWindow + kPageBytes).has_value());
  EXPECT_EQ(pins.windows_made(), 0);
  is_swapped_out = false;
  EXPECT_TRUE(pins.Find(slab_.get(), kPageBytes).has_value());
  EXPECT_TRUE(pins.Find(slab_.get(), kWindow + kPageBytes).has_value());
  is_swapped_out = true;  // Registered pages stay.
  EXPECT_TRUE(pins.Find(slab_.get(), kPageBytes).has_value());
}

}  // namespace
}  // namespace gemini::server
