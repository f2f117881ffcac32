// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/commit_shm.h"

#include <cstdint>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

constexpr TierMap<int64_t> kSlots = {{4, 16, 64}};

TEST(CommitShmTest, CommitWordsComeBackAsTheyWere) {
  constexpr int64_t kMostRecords = (int64_t{1} << kCommitRecordBits) - 1;
  for (const CommitWord& word :
       {CommitWord{0, 0}, CommitWord{1, 7}, CommitWord{(int64_t{1} << kCommitStepBits) - 1, 0},
        CommitWord{(int64_t{1} << kCommitStepBits) - 1, kMostRecords - 1}}) {
    EXPECT_THAT(UnpackCommitWord(PackCommitWord(word), kMostRecords), IsOkAndHolds(word));
  }
}

TEST(CommitShmTest, ZeroIsNothingCommittedAndNoCommittedWordIsZero) {
  EXPECT_THAT(UnpackCommitWord(0, 8), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(PackCommitWord({0, 0}), 1u);
}

TEST(CommitShmTest, ARecordOutsideTheTableIsRefused) {
  EXPECT_THAT(UnpackCommitWord(PackCommitWord({3, 7}), 8), IsOkAndHolds(CommitWord{3, 7}));
  EXPECT_THAT(UnpackCommitWord(PackCommitWord({3, 8}), 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record 8 of 8")));
  EXPECT_THAT(UnpackCommitWord(uint64_t{5} << kCommitRecordBits, 8),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CommitShmTest, SlotsOfAllTiersComeBackAsTheyWere) {
  for (const ChunkSlot& slot :
       {ChunkSlot{Tier::kDevice, SlotId(0)}, ChunkSlot{Tier::kDevice, SlotId(3)},
        ChunkSlot{Tier::kHost, SlotId(0)}, ChunkSlot{Tier::kHost, SlotId(15)},
        ChunkSlot{Tier::kNvme, SlotId(63)}}) {
    EXPECT_THAT(UnpackChunkSlot(PackChunkSlot(slot), kSlots), IsOkAndHolds(slot));
  }
}

TEST(CommitShmTest, ARecordThatNamesNoTierOrASlotPastTheTierIsRefused) {
  EXPECT_THAT(UnpackChunkSlot(0, kSlots), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(UnpackChunkSlot(PackChunkSlot({Tier::kDevice, SlotId(4)}), kSlots),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("DEVICE slot 4 of 4")));
  EXPECT_THAT(UnpackChunkSlot(PackChunkSlot({Tier::kHost, SlotId(16)}), kSlots),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST slot 16 of 16")));
  EXPECT_THAT(UnpackChunkSlot(uint64_t{4}, kSlots),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tier")));
}

// Property: a word is refused, or it is exactly what an honest writer stores for its meaning.
TEST(CommitShmTest, RandomWordsAreRefusedOrAreTheOneWordOfTheirMeaning) {
  std::mt19937_64 random(/*seed=*/6);
  int64_t accepted = 0;
  for (int round = 0; round < 1'000'000; ++round) {
    const uint64_t any = random() >> (random() % 64);
    if (const auto word = UnpackCommitWord(any, /*num_records=*/100); word.ok()) {
      ++accepted;
      ASSERT_EQ(PackCommitWord(*word), any);
      ASSERT_LT(word->record, 100);
      ASSERT_LT(word->step, int64_t{1} << kCommitStepBits);
    }
    if (const auto slot = UnpackChunkSlot(any, kSlots); slot.ok()) {
      ++accepted;
      ASSERT_EQ(PackChunkSlot(*slot), any);
      ASSERT_LT(slot->slot.value(), kSlots[slot->tier]);
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace gemini
