// SPDX-License-Identifier: Apache-2.0
#include "client/device/range_table.h"

#include <map>
#include <random>
#include <vector>

#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr int64_t kBundles = 8;
constexpr int64_t kSlots = 4;

CopyEvent Event(uint64_t sequence) { return CopyEvent::Behind(0, sequence); }
uint64_t SequenceOf(const CopyEvent& event) { return event.sequences[0]; }

class RangeTableTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/kSlots, /*host_slots=*/kBundles, 0);
    ASSERT_NE(session_, nullptr);
    store_ = OpenSpace("space", kBundles, kBundles, 0);
    ASSERT_NE(store_, nullptr);
  }
  RangeId Add(int64_t first, int64_t num_bundles = 1) {
    return table_.Add(*store_, BundleId(first), num_bundles, kParam);
  }
  void BringIn(RangeId id, SlotId slot, uint64_t settled = 1) {
    table_.TakeSlots(id, slot, RangeState::kIncoming);
    table_.Enter(id, Event(settled));
  }
  SeenChunk Seen(int64_t bundle) {
    return Look("space").at(ChunkOf(BundleId(bundle), kParam).value());
  }

  ChunkStore* store_ = nullptr;
  std::vector<std::byte> arena_ = std::vector<std::byte>(kSlots * kTestChunkBytes);
  RangeTable table_{arena_.data(), kSlots, kTestChunkBytes};
};

TEST_F(RangeTableTest, ARangeIsAddedOnceAndFoundByItsChunks) {
  const RangeId wide = Add(2, 3);
  EXPECT_EQ(Add(2, 3), wide);
  EXPECT_EQ(table_.size(), 1);
  EXPECT_THAT(table_.Find(*store_, BundleId(2), 3, kParam), IsOkAndHolds(wide));
  for (const int64_t num_bundles : {1, 2}) {
    EXPECT_THAT(table_.Find(*store_, BundleId(2), num_bundles, kParam),
                StatusIs(absl::StatusCode::kNotFound));
  }
  EXPECT_THAT(table_.Find(*store_, BundleId(3), 3, kParam), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(RangeTableTest, TheWordsShowWhatIsThereFromItsArrivalToItsEnd) {
  const RangeId id = Add(0);
  table_.TakeSlots(id, SlotId(2), RangeState::kIncoming);
  EXPECT_EQ(Seen(0).state, ChunkState::kFree);
  table_.Enter(id, Event(1));
  EXPECT_EQ(Seen(0).tier, Tier::kDevice);
  EXPECT_EQ(table_.Pin(id), arena_.data() + 2 * kTestChunkBytes);
  EXPECT_EQ(table_.Pin(id), arena_.data() + 2 * kTestChunkBytes);
  EXPECT_EQ(Seen(0).pins, 2);
  table_.Unpin(id, /*dirty=*/true, {});
  table_.Unpin(id, /*dirty=*/false, {});
  EXPECT_TRUE(Seen(0).dirty);
  EXPECT_EQ(Seen(0).pins, 0);
  table_.Leave(id);
  table_.Leave(id);
  EXPECT_EQ(Seen(0).state, ChunkState::kFree);
  EXPECT_EQ(table_.at(id).state, RangeState::kAbsent);
}

TEST_F(RangeTableTest, RoomThatIsReservedIsShownOnlyWhenItHasBytes) {
  const RangeId id = Add(0);
  table_.TakeSlots(id, SlotId(0), RangeState::kReserved);
  EXPECT_EQ(table_.NextEvictable(), id);
  EXPECT_EQ(Seen(0).state, ChunkState::kFree);
  table_.Leave(id);
  table_.TakeSlots(id, SlotId(0), RangeState::kReserved);
  RangeTable::Change(table_.at(id), RangeState::kWriting);
  EXPECT_EQ(table_.NextEvictable(), RangeId());
  table_.Enter(id, Event(1));
  EXPECT_EQ(Seen(0).tier, Tier::kDevice);
  // Another write to it is none of its arrival.
  RangeTable::Change(table_.at(id), RangeState::kWriting);
  table_.Enter(id, Event(2));
  EXPECT_EQ(SequenceOf(table_.at(id).settled), 2u);
}

TEST_F(RangeTableTest, WhoComesIntoASlotComesBehindWhoLeftIt) {
  const RangeId wide = Add(0, 2), next = Add(2), other = Add(3);
  BringIn(wide, SlotId(1), 5);
  table_.Pin(wide);
  table_.Unpin(wide, /*dirty=*/false, Event(7));
  table_.Leave(wide);
  table_.TakeSlots(next, SlotId(2), RangeState::kIncoming);
  EXPECT_EQ(SequenceOf(table_.FetchableAfter(table_.at(next), 0)), 7u);
  EXPECT_EQ(SequenceOf(table_.vacated(SlotId(1))), 7u);
  table_.TakeSlots(other, SlotId(0), RangeState::kIncoming);
  EXPECT_EQ(SequenceOf(table_.FetchableAfter(table_.at(other), 0)), 0u);
  // What it is fetched from next was read until its last fetch was done.
  EXPECT_EQ(SequenceOf(table_.at(wide).host_quiet), 5u);
  EXPECT_TRUE(table_.IsOccupied(wide, SlotId(2)));
  table_.Leave(next);
  EXPECT_FALSE(table_.IsOccupied(wide, SlotId(1)));
}

TEST_F(RangeTableTest, WhatMovesMayNotBeEvictedAndKeepsItsPlaceInTheOrder) {
  const RangeId first = Add(0), second = Add(1);
  BringIn(first, SlotId(0));
  BringIn(second, SlotId(1));
  RangeTable::Change(table_.at(first), RangeState::kCleaning);
  EXPECT_EQ(table_.NextEvictable(), second);
  EXPECT_EQ(table_.NextEvictable(second), RangeId());
  // It may be pinned and unpinned meanwhile.
  EXPECT_TRUE(table_.at(first).is_there());
  RangeTable::Change(table_.at(first), RangeState::kSettling);
  EXPECT_EQ(table_.NextEvictable(), first);
  EXPECT_EQ(table_.NextEvictable(first), second);
}

TEST(RangeStateTest, AnIllegalChangeIsABrokenInvariant) {
  DeviceRange range;
  range.state = RangeState::kSettling;
  for (const RangeState to : {RangeState::kIncoming, RangeState::kReserved, RangeState::kDiscarded,
                              RangeState::kSettling}) {
    EXPECT_DEATH(RangeTable::Change(range, to), "broken invariant");
  }
}

// Property: after any legal sequence the order, the slots and the sum of pins are those of a model.
TEST_F(RangeTableTest, AnyLegalSequenceAgreesWithAModel) {
  std::mt19937_64 random(/*seed=*/3);
  std::vector<RangeId> ranges;
  for (int64_t i = 0; i < kBundles; ++i) ranges.push_back(Add(i));
  std::map<int64_t, int64_t> slots;  // By range.
  std::map<int64_t, int> pins;
  std::vector<int64_t> order;  // Unpinned, the oldest first.
  for (int step = 0; step < 5000; ++step) {
    const RangeId id = ranges[random() % ranges.size()];
    const int64_t key = id.value();
    const auto slot = static_cast<int64_t>(random() % kSlots);
    if (slots.contains(key) && random() % 3 == 0 && pins[key] == 0) {
      table_.Leave(id);
      slots.erase(key);
      std::erase(order, key);
    } else if (slots.contains(key) && random() % 2 == 0) {
      table_.Pin(id);
      ++pins[key];
      std::erase(order, key);
    } else if (slots.contains(key) && pins[key] > 0) {
      table_.Unpin(id, /*dirty=*/false, {});
      if (--pins[key] == 0) order.push_back(key);
    } else if (!table_.IsOccupied(id, SlotId(slot))) {
      BringIn(id, SlotId(slot));
      slots[key] = slot;
      order.push_back(key);
    }
    int64_t pinned_bytes = 0;
    for (const auto& [range, count] : pins) pinned_bytes += count > 0 ? kTestChunkBytes : 0;
    ASSERT_EQ(table_.pinned_bytes(), pinned_bytes) << "step " << step;
    ASSERT_EQ(table_.slots().num_used(), static_cast<int64_t>(slots.size())) << "step " << step;
    RangeId next = table_.NextEvictable();
    for (const int64_t expected : order) {
      ASSERT_EQ(next, RangeId(expected)) << "step " << step;
      next = table_.NextEvictable(next);
    }
    ASSERT_EQ(next, RangeId()) << "step " << step;
  }
  EXPECT_GT(table_.pinned_peak_bytes(), kTestChunkBytes);
  for (const auto& [range, count] : pins) {
    for (int i = 0; i < count; ++i) table_.Unpin(RangeId(range), /*dirty=*/false, {});
  }
}

}  // namespace
}  // namespace gemini::client
