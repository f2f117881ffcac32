// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/residency_shm.h"

#include <cstdint>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

constexpr TierMap<int64_t> kSlots = {{4, 16, 64}};

TEST(ResidencyShmTest, EveryHonestPlacementComesBackAsItWas) {
  for (const ChunkResidency& residency :
       {ChunkResidency{},
        ChunkResidency{ChunkState::kHold, Tier::kDevice, /*dirty=*/true, 0, SlotId(3)},
        ChunkResidency{ChunkState::kHold, Tier::kHost, false, 0, SlotId(15)},
        ChunkResidency{ChunkState::kHold, Tier::kNvme, false, 0, SlotId(63)},
        ChunkResidency{ChunkState::kCompute, Tier::kDevice, false, 1, SlotId(0)},
        ChunkResidency{ChunkState::kCompute, Tier::kDevice, true, 4095, SlotId(2)}}) {
    EXPECT_THAT(UnpackResidency(PackResidency(residency), kSlots), IsOkAndHolds(residency));
  }
}

TEST(ResidencyShmTest, AFreeChunkIsTheZeroOfAFreshSegment) {
  EXPECT_EQ(PackResidency({ChunkState::kFree, Tier::kNvme, false, 0, SlotId(7)}), 0u);
  EXPECT_THAT(UnpackResidency(0, kSlots), IsOkAndHolds(ChunkResidency{}));
}

TEST(ResidencyShmTest, MorePinsThanTheFieldHoldsAreShownAsItsLargest) {
  const ChunkResidency many = {ChunkState::kCompute, Tier::kDevice, false, 100'000, SlotId(1)};
  ASSERT_OK_AND_ASSIGN(const ChunkResidency seen, UnpackResidency(PackResidency(many), kSlots));
  EXPECT_EQ(seen.pins, 4095);
  EXPECT_EQ(seen.slot, SlotId(1));
}

TEST(ResidencyShmTest, TheBitsAreWhereTheProtocolSaysTheyAre) {
  const ChunkResidency residency = {ChunkState::kCompute, Tier::kDevice, true, 5, SlotId(3)};
  EXPECT_EQ(PackResidency(residency), 2u | 1u << 4 | 5u << 12 | 3u << 24);
  EXPECT_EQ(PackResidency({ChunkState::kHold, Tier::kNvme, false, 0, SlotId(1)}),
            1u | 2u << 2 | 1u << 24);
}

TEST(ResidencyShmTest, WordsThatNoHonestWriterMakesAreRefused) {
  const uint64_t hold = PackResidency({ChunkState::kHold, Tier::kHost, false, 0, SlotId(1)});
  const uint64_t pinned = PackResidency({ChunkState::kCompute, Tier::kDevice, false, 1, SlotId(1)});
  const uint64_t bad_words[] = {
      hold | 2,                  // State 3.
      hold & ~uint64_t{3},       // FREE with a slot.
      hold | 1 << 5,             // The lowest bit that must be zero.
      hold | 1 << 11,            // The highest one.
      hold | 1 << 4,             // Dirty off DEVICE.
      hold | 1 << 12,            // Pins without COMPUTE.
      pinned & ~(0xfffu << 12),  // COMPUTE without pins.
      pinned | 1 << 2,           // COMPUTE on HOST.
      PackResidency({ChunkState::kHold, Tier::kHost, false, 0, SlotId(16)}),
      PackResidency({ChunkState::kHold, Tier::kDevice, false, 0, SlotId(4)}),
      ~uint64_t{0},
  };
  for (const uint64_t word : bad_words) {
    EXPECT_THAT(UnpackResidency(word, kSlots), StatusIs(absl::StatusCode::kInvalidArgument))
        << std::hex << word;
  }
}

TEST(ResidencyShmTest, ATierThatDoesNotExistIsRefusedBeforeItsSlotsAreLookedUp) {
  const uint64_t hold = PackResidency({ChunkState::kHold, Tier::kHost, false, 0, SlotId(1)});
  EXPECT_THAT(UnpackResidency(hold | 3 << 2, kSlots),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("unknown")));
}

// Property: a word is refused, or it is exactly what an honest writer stores for its meaning.
TEST(ResidencyShmTest, ARandomWordIsRefusedOrIsTheOneWordOfItsMeaning) {
  std::mt19937_64 random(/*seed=*/5);
  int64_t accepted = 0;
  for (int round = 0; round < 1'000'000; ++round) {
    uint64_t word = random();
    // Half of them near the honest ones: few bits, small slots.
    if (round % 2 == 0) word &= random() & random() & 0x7f'f01f'f01f;
    const absl::StatusOr<ChunkResidency> residency = UnpackResidency(word, kSlots);
    if (!residency.ok()) continue;
    ++accepted;
    ASSERT_EQ(PackResidency(*residency), word);
    ASSERT_LT(residency->slot.value(), kSlots[residency->tier]);
    ASSERT_EQ(residency->state == ChunkState::kCompute, residency->pins > 0);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace gemini
