// SPDX-License-Identifier: Apache-2.0
#include "server/spaces/space_reader.h"

#include <limits>
#include <random>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

class SpaceReaderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBundles = 6;
  static constexpr int64_t kTensors = 9;
  const ClientSegmentLayout layout_{kBundles, kTensors};
  std::vector<uint64_t> words_ = std::vector<uint64_t>(layout_.size_bytes / 8);
  const SpaceReader reader_{
      reinterpret_cast<const std::byte*>(words_.data()), kBundles, kTensors, {{4, 10, 20}}};

  uint64_t& residency(int64_t chunk) { return words_[layout_.residency_offset / 8 + chunk]; }
  uint64_t& commit(int64_t bundle) { return words_[layout_.commit_offset / 8 + bundle]; }
  uint64_t& record(int64_t index, int kind) {
    return words_[layout_.record_offset / 8 + index * kNumChunkKinds + kind];
  }
};

TEST_F(SpaceReaderTest, CountsWhatTheWordsSay) {
  residency(0) =
      PackResidency({.state = ChunkState::kHold, .tier = Tier::kHost, .slot = SlotId(9)});
  residency(1) =
      PackResidency({.state = ChunkState::kHold, .tier = Tier::kNvme, .slot = SlotId(19)});
  residency(2) = PackResidency(
      {.state = ChunkState::kCompute, .tier = Tier::kDevice, .pins = 2, .slot = SlotId(3)});
  residency(3) =
      PackResidency({.state = ChunkState::kHold, .tier = Tier::kHost, .slot = SlotId(10)});
  residency(4) = ~uint64_t{0};
  const SpaceCounts counts = reader_.Count();
  EXPECT_EQ(counts.chunks_hold, (TierMap<int64_t>{{0, 1, 1}}));
  EXPECT_EQ(counts.chunks_compute, 1);
  EXPECT_EQ(counts.chunks_invalid, 2);  // A slot past the end, and noise.
  EXPECT_EQ(counts.chunks_free, kBundles * kNumChunkKinds - 5);
}

TEST_F(SpaceReaderTest, ASegmentThatNobodyWroteToHasTheCountsOfAnUntouchedOne) {
  EXPECT_EQ(reader_.Count(), reader_.CountUntouched());
  EXPECT_EQ(reader_.CountUntouched().chunks_free, kBundles * kNumChunkKinds);
  residency(0) =
      PackResidency({.state = ChunkState::kHold, .tier = Tier::kHost, .slot = SlotId(9)});
  EXPECT_NE(reader_.Count(), reader_.CountUntouched());
}

TEST_F(SpaceReaderTest, ACommitCountsOnlyWithARecordWhoseSlotsExist) {
  record(3, 0) = PackChunkSlot({Tier::kHost, SlotId(1)});
  commit(0) = PackCommitWord({.step = 5, .record = 3});
  commit(1) = PackCommitWord({.step = 9, .record = 4});  // An empty record: nothing to hold.
  record(5, 2) = PackChunkSlot({Tier::kHost, SlotId(10)});
  commit(2) = PackCommitWord({.step = 1, .record = 5});  // Its slot does not exist.
  commit(3) = PackCommitWord({.step = 1, .record = layout_.num_records});
  const CommitSummary commits = reader_.ReadCommits();
  EXPECT_EQ(commits.committed, 2);
  EXPECT_EQ(commits.invalid, 2);
  EXPECT_EQ(commits.min_step, 5);
  EXPECT_EQ(commits.max_step, 9);
}

TEST_F(SpaceReaderTest, AVersionThatIsOnDeviceAloneCountsWithinTheArena) {
  residency(kNumChunkKinds) = PackResidency(
      {.state = ChunkState::kHold, .tier = Tier::kDevice, .dirty = true, .slot = SlotId(3)});
  record(0, 0) = PackChunkSlot({Tier::kDevice, SlotId(3)});
  commit(1) = PackCommitWord({.step = 5, .record = 0});
  record(1, 0) = PackChunkSlot({Tier::kDevice, SlotId(4)});  // The arena has four.
  commit(2) = PackCommitWord({.step = 5, .record = 1});
  EXPECT_EQ(reader_.ReadCommits().committed, 1);
  EXPECT_EQ(reader_.ReadCommits().invalid, 1);
  const std::vector<ListedChunk> chunks = reader_.List(kNumChunkKinds, kNumChunkKinds + 1);
  ASSERT_EQ(chunks.size(), kNumChunkKinds + 1);
  EXPECT_FALSE(chunks[0].invalid);
  EXPECT_EQ(chunks[0].residency.tier, Tier::kDevice);
  EXPECT_EQ(chunks[0].commit_step, 5);
  EXPECT_TRUE(chunks[kNumChunkKinds].invalid);
}

TEST_F(SpaceReaderTest, ListingEndsAtTheLastChunkAndCarriesTheBundlesStep) {
  record(0, 0) = PackChunkSlot({Tier::kHost, SlotId(1)});
  commit(5) = PackCommitWord({.step = 8, .record = 0});
  const int64_t first = 5 * kNumChunkKinds;  // Of the last bundle.
  const std::vector<ListedChunk> chunks = reader_.List(first - 1, 1000);
  ASSERT_EQ(chunks.size(), kNumChunkKinds + 1);
  EXPECT_EQ(chunks[0].commit_step, -1);
  EXPECT_EQ(chunks[1].chunk, ChunkId(first));
  EXPECT_EQ(chunks[1].commit_step, 8);
  EXPECT_TRUE(reader_.List(first + kNumChunkKinds, 1).empty());
  EXPECT_TRUE(reader_.List(std::numeric_limits<int64_t>::max(), 1).empty());
}

TEST_F(SpaceReaderTest, TheHeadersWordsAreShownAndCutAtTheTypesEnd) {
  auto& header = *reinterpret_cast<ClientSegmentHeaderShm*>(words_.data());
  header.stall_by_cause_ns[static_cast<int>(StallCause::kUpdate)] = 70;
  header.divergences[static_cast<int>(Divergence::kBudget)] = 3;
  header.rounds = 12;
  header.planned_rounds = ~uint64_t{0};
  header.update_pending = 5;
  const SpaceCounts counts = reader_.Count();
  EXPECT_THAT(counts.stall_by_cause_ns, ::testing::ElementsAre(0, 70, 0, 0, 0));
  EXPECT_THAT(counts.divergences, ::testing::ElementsAre(0, 0, 3, 0, 0));
  EXPECT_EQ(counts.rounds, 12);
  EXPECT_EQ(counts.planned_rounds, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(counts.update_pending, 5);
}

TEST_F(SpaceReaderTest, WritesThatFailedAreCountedAsTheClientSays) {
  auto& header = *reinterpret_cast<ClientSegmentHeaderShm*>(words_.data());
  EXPECT_EQ(reader_.Count().failed_nvme_writes, 0);
  header.failed_nvme_writes = 3;
  EXPECT_EQ(reader_.Count().failed_nvme_writes, 3);
  header.step_ns = 1;
  header.step_stall_ns = 2;
  header.step_fetch_bytes = 3;
  header.step_evict_bytes = ~uint64_t{0};
  const SpaceCounts counts = reader_.Count();
  EXPECT_EQ(counts.step_ns, 1);
  EXPECT_EQ(counts.step_stall_ns, 2);
  EXPECT_EQ(counts.step_fetch_bytes, 3);
  EXPECT_EQ(counts.step_evict_bytes, std::numeric_limits<int64_t>::max());
  header.failed_nvme_writes = ~uint64_t{0};
  EXPECT_EQ(reader_.Count().failed_nvme_writes, std::numeric_limits<int64_t>::max());
}

TEST_F(SpaceReaderTest, TheLastDamagedChunkIsOneOfTheSpaceOrNone) {
  auto& header = *reinterpret_cast<ClientSegmentHeaderShm*>(words_.data());
  EXPECT_EQ(reader_.Count().damaged_chunks, 0);
  EXPECT_EQ(reader_.Count().last_damaged, ChunkId());
  header.damaged_chunks = 2;
  header.last_damaged = 1;
  EXPECT_EQ(reader_.Count().damaged_chunks, 2);
  EXPECT_EQ(reader_.Count().last_damaged, ChunkId(0));
  header.last_damaged = kBundles * kNumChunkKinds;
  EXPECT_EQ(reader_.Count().last_damaged, ChunkId(kBundles * kNumChunkKinds - 1));
  for (const uint64_t none : {uint64_t{kBundles * kNumChunkKinds + 1}, ~uint64_t{0}}) {
    header.last_damaged = none;
    EXPECT_EQ(reader_.Count().last_damaged, ChunkId());
  }
}

// Property: whatever the words are, every chunk is counted exactly once and nothing is read
// outside.
TEST_F(SpaceReaderTest, EveryChunkOfNoiseIsCountedOnce) {
  std::mt19937_64 random(/*seed=*/3);
  for (int round = 0; round < 500; ++round) {
    for (uint64_t& word : words_) word = random() >> random() % 64;
    const SpaceCounts counts = reader_.Count();
    int64_t sum = counts.chunks_free + counts.chunks_compute + counts.chunks_invalid;
    for (Tier tier : kAllTiers) sum += counts.chunks_hold[tier];
    ASSERT_EQ(sum, kBundles * kNumChunkKinds);
    ASSERT_LE(counts.commits.committed + counts.commits.invalid, kBundles);
    ASSERT_GE(counts.step, 0);
  }
}

}  // namespace
}  // namespace gemini::server
