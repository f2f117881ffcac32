// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_playback.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kChunk = kTestChunkBytes;
// A chunk is read in 10 ns and written in 20.
constexpr CostModel kCosts = {.nvme_read = kChunk * 1e8, .nvme_write = kChunk * 5e7};

HostUse Use(int64_t chunk, int64_t asked_ns, HostUseKind kind = HostUseKind::kReads) {
  return {.chunk = ChunkId(chunk), .kind = kind, .asked_ns = asked_ns, .held_ns = 5};
}

HostRound Play(const std::vector<HostUse>& uses, std::vector<int64_t> slots, int64_t round_ns,
               LateUses late = LateUses::kAsked) {
  return PlayHost(uses, slots, kChunk, kCosts, round_ns, late);
}

TEST(HostPlaybackTest, ReadsAheadInThePlaceOfWhatIsUsedLast) {
  // Chunk 0 stays: chunks 1 and 2 take turns in the other slot, each when it is used next.
  const HostRound round = Play({Use(0, 0), Use(1, 100), Use(0, 200), Use(2, 300)}, {2}, 400);
  EXPECT_EQ(round.read_bytes, 2 * kChunk);
  EXPECT_EQ(round.write_bytes, 0);  // Both have a copy on NVME, which is as good.
  EXPECT_EQ(round.round_ns, 400);
  EXPECT_EQ(round.disk_ns, 20);
  EXPECT_THAT(round.ready_ns, ElementsAre(0, 10, 0, 210));
  ASSERT_EQ(round.transfers.size(), 2u);
  EXPECT_EQ(round.transfers[0].chunk, ChunkId(1));
  EXPECT_EQ(round.transfers[0].begin_ns, 0);
  EXPECT_EQ(round.transfers[1].chunk, ChunkId(2));
  EXPECT_FALSE(round.transfers[1].is_write);
  EXPECT_EQ(round.transfers[1].begin_ns, 200);
  EXPECT_EQ(round.transfers[1].end_ns, 210);
}

TEST(HostPlaybackTest, AnInterruptEndsItInTheMiddleOfARound) {
  std::vector<HostUse> uses;
  for (int64_t i = 0; i < 100'000; ++i) uses.push_back(Use(i % 3, 10 * i));
  int asked = 0;
  const PlanInterrupt interrupt = [&asked] {
    return ++asked < 3 ? absl::OkStatus() : absl::CancelledError();
  };
  const HostRound round = PlayHost(uses, std::vector<int64_t>{2}, kChunk, kCosts, 1'000'000,
                                   LateUses::kAsked, interrupt);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(round.ready_ns.size(), uses.size());
  EXPECT_LT(round.transfers.size(), 20'000u);
}

TEST(HostPlaybackTest, WritesWhatHasChangedBeforeItsSlotIsReadInto) {
  const HostRound round =
      Play({Use(0, 0), Use(1, 100, HostUseKind::kChanges), Use(0, 200), Use(2, 300)}, {2}, 400);
  EXPECT_EQ(round.read_bytes, 2 * kChunk);
  EXPECT_EQ(round.write_bytes, kChunk);
  EXPECT_THAT(round.ready_ns, ElementsAre(0, 10, 0, 200 + 20 + 10));
}

TEST(HostPlaybackTest, AGradientKeepsNoCopyOnNvmeWhileItIsInHost) {
  const int64_t grad = ChunkOf(BundleId(0), ChunkKind::kGrad).value();
  const HostRound round = Play({Use(0, 0), Use(grad, 100), Use(0, 200), Use(7, 300)}, {2}, 400);
  EXPECT_EQ(round.read_bytes, 2 * kChunk);
  EXPECT_EQ(round.write_bytes, kChunk);
}

TEST(HostPlaybackTest, WhatIsOverwrittenNeedsRoomAlone) {
  const HostRound round = Play({Use(0, 0), Use(1, 100, HostUseKind::kOverwrites), Use(0, 200),
                                Use(2, 300, HostUseKind::kOverwrites)},
                               {2}, 400);
  EXPECT_EQ(round.read_bytes, 0);
  EXPECT_EQ(round.write_bytes, 2 * kChunk);
  // Nothing is written before the room is asked for.
  EXPECT_THAT(round.ready_ns, ElementsAre(0, 120, 0, 320));
}

TEST(HostPlaybackTest, WritesFollowOneAnother) {
  constexpr HostUseKind kOverwrites = HostUseKind::kOverwrites;
  const HostRound round = Play({Use(0, 0, kOverwrites), Use(1, 1, kOverwrites),
                                Use(2, 100, kOverwrites), Use(3, 101, kOverwrites)},
                               {2}, 400);
  EXPECT_EQ(round.write_bytes, 4 * kChunk);
  EXPECT_THAT(round.ready_ns, ElementsAre(20, 40, 120, 140));
}

TEST(HostPlaybackTest, WhatIsAskedForAndNotThereIsReadOnDemand) {
  // The only slot is held until 5, and the other chunk is asked for at 3.
  const HostRound round = Play({Use(0, 0), Use(1, 3)}, {1}, 100);
  EXPECT_THAT(round.ready_ns, ElementsAre(0, 15));
  EXPECT_EQ(round.read_bytes, 2 * kChunk);
}

TEST(HostPlaybackTest, ARoundTakesWhatTheDiskTakes) {
  const std::vector<HostUse> uses = {Use(0, 0), Use(1, 6), Use(2, 12), Use(3, 18)};
  const HostRound asked = Play(uses, {1}, 24);
  EXPECT_EQ(asked.read_bytes, 4 * kChunk);
  EXPECT_EQ(asked.disk_ns, 40);
  EXPECT_EQ(asked.round_ns, 40);
  // Each is held for 5 ns, and the next one's read begins behind that.
  const HostRound delayed = Play(uses, {1}, 24, LateUses::kDelayAll);
  EXPECT_EQ(delayed.read_bytes, 4 * kChunk);
  EXPECT_EQ(delayed.round_ns, 4 * 15);
}

TEST(HostPlaybackTest, WhatIsGivenUpLeavesItsSlot) {
  const HostRound round =
      Play({Use(0, 0), Use(1, 100), Use(1, 120, HostUseKind::kGivesUp), Use(0, 200),
            Use(2, 250, HostUseKind::kOverwrites), Use(1, 300, HostUseKind::kOverwrites)},
           {2}, 400);
  // Chunk 2 goes into it. The version that comes back later takes the slot of chunk 2, which is
  // written.
  EXPECT_THAT(round.ready_ns, ElementsAre(0, 0, 0, 0, 0, 320));
  EXPECT_EQ(round.write_bytes, kChunk);
  EXPECT_EQ(round.read_bytes, 0);
}

TEST(HostPlaybackTest, SpacesHaveSlotsOfTheirOwnAndOneDisk) {
  std::vector<HostUse> uses = {Use(0, 0), Use(1, 100), Use(0, 0), Use(1, 100)};
  uses[1].space = 0;
  uses[2].space = uses[3].space = 1;
  std::sort(uses.begin(), uses.end(),
            [](const HostUse& a, const HostUse& b) { return a.asked_ns < b.asked_ns; });
  const HostRound roomy = Play(uses, {1, 2}, 200);
  EXPECT_EQ(roomy.read_bytes, 2 * kChunk);
  for (const NvmeTransfer& transfer : roomy.transfers) EXPECT_EQ(transfer.space, 0);
  const HostRound both = Play(uses, {1, 1}, 200);
  EXPECT_EQ(both.read_bytes, 4 * kChunk);
  std::vector<int64_t> ready_ns = {both.ready_ns[2], both.ready_ns[3]};
  std::sort(ready_ns.begin(), ready_ns.end());
  EXPECT_THAT(ready_ns, ElementsAre(15, 25));  // One behind the other.
}

TEST(HostPlaybackTest, WithRoomForAllNothingMoves) {
  const HostRound round = Play(
      {Use(0, 0), Use(1, 1, HostUseKind::kChanges), Use(2, 2, HostUseKind::kOverwrites)}, {3}, 9);
  EXPECT_THAT(round.transfers, IsEmpty());
  EXPECT_THAT(round.ready_ns, ElementsAre(0, 0, 0));
  EXPECT_EQ(round.round_ns, 9);
}

HostUse PartOf(int32_t access, int32_t part, int64_t rounds_after = 0) {
  return {.chunk = ChunkId(0), .rounds_after = rounds_after, .access = access, .part = part};
}

TEST(HostPlaybackTest, AnEventIsReadyWhenItsFirstChunkAndItsLastOneAre) {
  const std::vector<HostAccess> accesses = {{HostEvent::kFetch, 3, 10, 5},
                                            {HostEvent::kUpdate, 1, 90, 5},
                                            {HostEvent::kGradient, 0, 150, 5}};
  // Three chunks, of which the second comes last; one with four uses; and one in the round after.
  const std::vector<HostUse> uses = {PartOf(0, 0), PartOf(0, 1), PartOf(0, 2),
                                     PartOf(1, 0), PartOf(1, 0), PartOf(2, 0, 1)};
  HostRound round;
  round.disk_ns = 70;
  round.round_ns = 100;
  round.ready_ns = {20, 60, 30, 0, 130, 0};
  const HostTimes times = TimesOf(accesses, uses, round);
  EXPECT_EQ(times.least_round_ns, 70);
  const HostReady fetch = times.of(HostEvent::kFetch, 3);
  EXPECT_EQ(fetch.rounds_after, 0);
  EXPECT_EQ(fetch.first_ns, 20);
  EXPECT_EQ(fetch.last_ns, 60 + 5);
  const HostReady update = times.of(HostEvent::kUpdate, 1);
  EXPECT_EQ(update.rounds_after, 1);
  EXPECT_EQ(update.first_ns, 30);
  EXPECT_EQ(update.last_ns, 30);
  for (const HostReady& at_once :
       {times.of(HostEvent::kGradient, 0), times.of(HostEvent::kFetch, 7)}) {
    EXPECT_EQ(at_once.first_ns, HostReady::kLongAgo);
    EXPECT_EQ(at_once.last_ns, HostReady::kLongAgo);
  }
}

// Two spaces of 40 and 80 chunks.
RangeTrace TwoSpaces() {
  Trace trace;
  trace.phase = "eval";
  for (int32_t space = 0; space < 2; ++space) {
    for (int i = 0; i < 40 * (space + 1); ++i) {
      trace.tensors.push_back({kChunk, TensorGroup::kFrozen, space});
    }
  }
  trace.operators = {{0, 1, 1000, 0}};
  trace.uses = {{.tensor = 0}};
  return *PackTrace(trace, kChunk);
}

TEST(HostPlaybackTest, SpacesShareHostByTheirChunks) {
  const RangeTrace trace = TwoSpaces();
  const int64_t all = 120 + 2 * SpareSlots({});
  EXPECT_TRUE(HostHoldsAll(trace, std::numeric_limits<int64_t>::max()));
  EXPECT_TRUE(HostHoldsAll(trace, all * kChunk));
  EXPECT_FALSE(HostHoldsAll(trace, all * kChunk - 1));
  EXPECT_FALSE(HostHoldsAll(trace, 0));
  EXPECT_THAT(SlotsOfSpaces(trace, 90 * kChunk), ElementsAre(30 - 13, 60 - 13));
  EXPECT_THAT(SlotsOfSpaces(trace, 0), ElementsAre(UpdateSlots({}), UpdateSlots({})));
}

}  // namespace
}  // namespace gemini::policies
