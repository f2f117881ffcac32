// SPDX-License-Identifier: Apache-2.0
#include "client/host/residency_writer.h"

#include <atomic>
#include <memory>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

class ResidencyWriterTest : public ::testing::Test {
 protected:
  ChunkResidency Read(int64_t chunk) {
    TierMap<int64_t> slots;
    slots.values = {8, 8, 8};
    const absl::StatusOr<ChunkResidency> residency = UnpackResidency(words_[chunk].load(), slots);
    EXPECT_OK(residency);
    return residency.value_or(ChunkResidency{});
  }
  static ChunkResidency Hold(Tier tier, int64_t slot, bool dirty = false) {
    return {.state = ChunkState::kHold, .tier = tier, .dirty = dirty, .slot = SlotId(slot)};
  }

  std::unique_ptr<std::atomic<uint64_t>[]> words_ { new std::atomic<uint64_t>[4] {} };
  ResidencyWriter writer_{words_.get(), 4};
};

TEST_F(ResidencyWriterTest, FollowsAChunkThroughTheTiers) {
  writer_.SetBelow(ChunkId(2), ChunkSlot{.tier = Tier::kHost, .slot = SlotId(3)});
  EXPECT_EQ(Read(2), Hold(Tier::kHost, 3));
  writer_.EnterDevice(ChunkId(2), SlotId(5));
  EXPECT_EQ(Read(2), Hold(Tier::kDevice, 5));
  writer_.SetOnDevice(ChunkId(2), SlotId(5), /*pins=*/2, /*dirty=*/false);
  EXPECT_EQ(
      Read(2),
      (ChunkResidency{
          .state = ChunkState::kCompute, .tier = Tier::kDevice, .pins = 2, .slot = SlotId(5)}));
  writer_.SetOnDevice(ChunkId(2), SlotId(5), /*pins=*/0, /*dirty=*/true);
  EXPECT_EQ(Read(2), Hold(Tier::kDevice, 5, /*dirty=*/true));
  writer_.LeaveDevice(ChunkId(2));
  EXPECT_EQ(Read(2), Hold(Tier::kHost, 3));
  writer_.SetBelow(ChunkId(2), std::nullopt);
  EXPECT_EQ(Read(2), ChunkResidency{});
  EXPECT_EQ(Read(1), ChunkResidency{});
}

TEST_F(ResidencyWriterTest, AMoveBelowShowsWhenTheChunkLeavesDevice) {
  writer_.SetBelow(ChunkId(0), ChunkSlot{.tier = Tier::kHost, .slot = SlotId(1)});
  writer_.EnterDevice(ChunkId(0), SlotId(2));
  writer_.SetBelow(ChunkId(0), ChunkSlot{.tier = Tier::kNvme, .slot = SlotId(6)});
  EXPECT_EQ(Read(0), Hold(Tier::kDevice, 2));
  writer_.LeaveDevice(ChunkId(0));
  EXPECT_EQ(Read(0), Hold(Tier::kNvme, 6));
}

TEST_F(ResidencyWriterTest, AnIllegalChangeStops) {
  writer_.SetBelow(ChunkId(0), ChunkSlot{.tier = Tier::kHost, .slot = SlotId(1)});
  writer_.EnterDevice(ChunkId(0), SlotId(2));
  writer_.SetOnDevice(ChunkId(0), SlotId(2), /*pins=*/1, /*dirty=*/false);
  writer_.SetBelow(ChunkId(0), std::nullopt);
  EXPECT_DEATH(writer_.LeaveDevice(ChunkId(0)), "broken invariant");  // COMPUTE to FREE.
  EXPECT_DEATH(writer_.SetOnDevice(ChunkId(1), SlotId(0), 1, false), "broken invariant");
}

}  // namespace
}  // namespace gemini::client
