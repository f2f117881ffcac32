// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/space_shm.h"

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(SpaceShmTest, ThePartsOfTheClientSegmentFollowEachOtherWithoutOverlap) {
  for (const int64_t num_bundles : {0, 1, 2, 3, 100, 65'537}) {
    const ClientSegmentLayout layout(num_bundles);
    EXPECT_EQ(layout.num_chunks, num_bundles * kNumChunkKinds);
    EXPECT_GE(layout.num_records, 2 * num_bundles + 1);
    EXPECT_GE(layout.ring_offset, static_cast<int64_t>(sizeof(ClientSegmentHeaderShm)));
    EXPECT_GE(layout.residency_offset,
              layout.ring_offset + kIoRingEntries * static_cast<int64_t>(sizeof(IoEntryShm)));
    EXPECT_GE(layout.commit_offset, layout.residency_offset + layout.num_chunks * 8);
    EXPECT_GE(layout.record_offset, layout.commit_offset + num_bundles * 8);
    EXPECT_GE(
        layout.intent_offset,
        layout.record_offset + layout.num_records * static_cast<int64_t>(sizeof(CommitRecordShm)));
    for (const int64_t num_tensors : {0, 1, 1'000}) {
      const ClientSegmentLayout with_tensors(num_bundles, num_tensors);
      EXPECT_EQ(with_tensors.intent_offset, layout.intent_offset);
      EXPECT_GE(with_tensors.size_bytes,
                layout.intent_offset +
                    2 * (static_cast<int64_t>(sizeof(IntentShm)) +
                         (2 * num_tensors + num_bundles) * 8 + (kMaxParameterGroups - 1) * 64));
    }
  }
}

TEST(SpaceShmTest, EveryPartStartsWhereA64BitWordMay) {
  for (int64_t num_bundles = 0; num_bundles < 50; ++num_bundles) {
    const ClientSegmentLayout layout(num_bundles);
    for (const int64_t offset : {layout.ring_offset, layout.residency_offset, layout.commit_offset,
                                 layout.record_offset, layout.intent_offset, layout.size_bytes}) {
      ASSERT_EQ(offset % static_cast<int64_t>(alignof(std::atomic<uint64_t>)), 0);
    }
  }
}

TEST(SpaceShmTest, AContentsWordTellsAChecksumFromNoneAndFromNoContents) {
  EXPECT_EQ(PackContents(0x12345678), 0x1'1234'5678u);
  for (const uint32_t crc : {0u, 1u, 0x8000'0000u, ~0u}) {
    EXPECT_TRUE(HasChecksum(PackContents(crc)));
    EXPECT_TRUE(IsContents(PackContents(crc)));
    EXPECT_EQ(static_cast<uint32_t>(PackContents(crc)), crc);
  }
  for (const uint64_t word :
       {uint64_t{0}, kUncheckedContents, ~uint64_t{0}, uint64_t{0xffffffff}}) {
    EXPECT_FALSE(HasChecksum(word));
    EXPECT_EQ(IsContents(word), word == kUncheckedContents);
  }
}

TEST(SpaceShmTest, ACompletionNamesItsRequestAndIsNeverTheZeroOfAFreshSegment) {
  const int ok = static_cast<int>(absl::StatusCode::kOk);
  const int loss = static_cast<int>(absl::StatusCode::kDataLoss);
  EXPECT_EQ(PackCompletion(0, ok), 256u);
  EXPECT_EQ(PackCompletion(41, loss), (42u << 8) + 15u);
  std::set<uint64_t> words;
  for (uint64_t sequence = 0; sequence < 1024; ++sequence) {
    for (const int code : {ok, loss})
      EXPECT_TRUE(words.insert(PackCompletion(sequence, code)).second);
  }
}

}  // namespace
}  // namespace gemini
