// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/planner/planner.h"
#include "policies/simulator/host_playback.h"
#include "policies/simulator/playback.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/kept_gradients.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kChunk = kTestChunkBytes;
constexpr int64_t kNvme = static_cast<int64_t>(StallCause::kNvme);
// Copies and updates take little beside the disk, where a chunk is read and written in 4,096 ns.
constexpr CostModel kCosts = {.host_to_device = 1e11,
                              .device_to_host = 1e11,
                              .nvme_read = 1e9,
                              .nvme_write = 1e9,
                              .update_elements_per_second = 1e11,
                              .device_update_elements_per_second = 0,
                              .copy_latency_ns = 1};

absl::StatusOr<Plan> PlanFor(const RangeTrace& trace, int64_t device_bytes, int64_t host_bytes,
                             const CostModel& costs = kCosts) {
  return MakePlan({.trace = trace,
                   .budget_bytes = {{device_bytes, host_bytes, 0}},
                   .costs = costs,
                   .policy = {}});
}

// Layers of a chunk each, in room for two: each comes for its operator, in every round.
RangeTrace FrozenLayers(int layers, int64_t compute_ns) {
  Trace trace;
  trace.phase = "eval";
  for (int i = 0; i < layers; ++i) {
    trace.tensors.push_back({kChunk, TensorGroup::kFrozen, 0});
    trace.operators.push_back({i, 1, compute_ns, 0});
    trace.uses.push_back({.tensor = i});
  }
  return *PackTrace(trace, kChunk);
}

// HOST with so many slots for chunks.
int64_t HostFor(int64_t num_slots) { return (num_slots + SlotsBetweenChunks({})) * kChunk; }

TEST(HostPlanTest, APlanThatHostHoldsIsMadeAsBefore) {
  const RangeTrace trace = FrozenLayers(30, 20'000);
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 2 * kChunk, (30 + SpareSlots({})) * kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan unlimited,
                       PlanFor(trace, 2 * kChunk, std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(plan, unlimited);
  EXPECT_THAT(plan.host_uses, IsEmpty());
  EXPECT_EQ(plan.prediction.nvme_read_bytes, 0);
}

TEST(HostPlanTest, ReadingAheadHidesADiskThatIsFastEnough) {
  const RangeTrace trace = FrozenLayers(30, 20'000);
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 2 * kChunk, HostFor(15)));
  ASSERT_OK_AND_ASSIGN(const Plan unlimited,
                       PlanFor(trace, 2 * kChunk, std::numeric_limits<int64_t>::max()));
  // Belady leaves 29 layers to come each round, of which HOST may keep 14.
  EXPECT_EQ(plan.prediction.fetch_bytes, unlimited.prediction.fetch_bytes);
  EXPECT_THAT(plan.host_uses, SizeIs(plan.prediction.fetch_bytes / kChunk));
  EXPECT_GE(plan.prediction.nvme_read_bytes, 14 * kChunk);
  EXPECT_EQ(plan.prediction.nvme_write_bytes, 0);
  EXPECT_EQ(plan.prediction.stall_ns[kNvme], 0);
  EXPECT_EQ(plan.prediction.round_ns, unlimited.prediction.round_ns);
}

TEST(HostPlanTest, ARoundThatTheDiskBoundsTakesWhatItReads) {
  const RangeTrace trace = FrozenLayers(30, 100);
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, 2 * kChunk, HostFor(10)));
  const Prediction& totals = plan.prediction;
  const double disk_ns = static_cast<double>(totals.nvme_read_bytes);  // At a byte a nanosecond.
  EXPECT_GE(static_cast<double>(totals.round_ns), disk_ns);
  EXPECT_LE(static_cast<double>(totals.round_ns), 1.1 * disk_ns);
  EXPECT_GE(totals.stall_ns[kNvme], totals.round_ns * 9 / 10);
  // 28 chunks and more come to DEVICE, of which HOST keeps 10 at most.
  EXPECT_GE(totals.nvme_read_bytes, 18 * kChunk);
  EXPECT_LE(totals.nvme_read_bytes, 24 * kChunk);
}

TEST(HostPlanTest, WhatUsesTooManyChunksIsPlannedWithoutHost) {
  // A peer may tell of any number of gradients of a tensor of any size.
  constexpr int64_t kTensorChunks = int64_t{1} << 14;
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{kTensorChunks * kChunk, TensorGroup::kTrainable, 0}};
  trace.operators = {{0, 1, 1000, 0}, {1, 0, 10, 0}};
  trace.uses = {{.tensor = 0}};
  trace.gradient_outs.assign(60, {0, 0});
  trace.updated = {0};
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, kChunk));
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(packed, (kTensorChunks + 1) * kChunk, 0));
  EXPECT_THAT(plan.host_uses, IsEmpty());
}

// Each layer has a frozen base in one space and what is trained of it in another, as adapters have.
TEST(HostPlanTest, ForeseesTheUsesOfEachSpace) {
  constexpr int kLayers = 20;
  Trace trace;
  trace.phase = "train";
  for (int32_t space = 0; space < 2; ++space) {
    for (int i = 0; i < kLayers; ++i) {
      trace.tensors.push_back(
          {kChunk, space == 0 ? TensorGroup::kFrozen : TensorGroup::kTrainable, space});
    }
  }
  for (int i = 0; i < 2 * kLayers; ++i) {
    const int32_t layer = i < kLayers ? i : 2 * kLayers - 1 - i;
    trace.operators.push_back({2 * i, 2, 20'000, 0});
    trace.uses.push_back({.tensor = layer});
    trace.uses.push_back({.tensor = kLayers + layer});
    if (i >= kLayers) trace.gradient_outs.push_back({i, kLayers + layer});
  }
  trace.operators.push_back({4 * kLayers, 0, 10, 0});
  for (int i = 0; i < kLayers; ++i) trace.updated.push_back(kLayers + i);
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, kChunk));
  // Of the 20 chunks of one and the 80 of the other.
  ASSERT_THAT(SlotsOfSpaces(packed, 80 * kChunk), ElementsAre(UpdateSlots({}), 64 - 13));
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(packed, 4 * kChunk, 80 * kChunk));
  std::map<int32_t, std::set<ChunkId>> used;
  for (const PlannedHostUse& use : plan.host_uses) used[use.space].insert(use.chunk);
  EXPECT_GE(used[0].size(), kLayers - 4u);  // DEVICE may keep some.
  EXPECT_THAT(used[1], SizeIs(4 * kLayers));
  ASSERT_OK_AND_ASSIGN(const Simulation played,
                       Simulate(packed, plan, kCosts, /*with_events=*/true, 80 * kChunk));
  std::map<int32_t, int64_t> reads;
  for (const SimulatedEvent& event : played.events) {
    if (event.lane == Lane::kNvmeRead) ++reads[event.space];
  }
  // Each space's chunks come and go among themselves.
  EXPECT_GE(reads[0], kLayers - UpdateSlots({}) - 4);
  EXPECT_GE(reads[1], 80 - (64 - 13));
}

// Two layers in two slots, forward and backward, gradients, the update.
RangeTrace TwoLayers() {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{kChunk, TensorGroup::kTrainable, 0}, {kChunk, TensorGroup::kTrainable, 0}};
  trace.operators = {
      {0, 1, 20'000, 0}, {1, 1, 20'000, 0}, {2, 1, 20'000, 0}, {3, 1, 20'000, 0}, {4, 0, 10, 0}};
  trace.uses = {{.tensor = 0}, {.tensor = 1}, {.tensor = 1}, {.tensor = 0}};
  trace.gradient_outs = {{2, 1}, {3, 0}};
  trace.updated = {0, 1};
  return *PackTrace(trace, kChunk);
}

// A round of TwoLayers that waits for HOST at one place.
class HostTimesTest : public ::testing::Test {
 protected:
  static constexpr CostModel kSlowCosts = {.host_to_device = 1e9,
                                           .device_to_host = 1e9,
                                           .update_elements_per_second = 1e9,
                                           .device_update_elements_per_second = 0,
                                           .copy_latency_ns = 100};
  static constexpr int64_t kCopyNs = kChunk + 100, kUpdateNs = kChunk / 4;
  static constexpr int64_t kRoundNs = 80'000 + kCopyNs /* out */ + kUpdateNs + kCopyNs /* in */;

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(plan_, PlanFor(trace_, 2 * kChunk, kUnlimitedBytes, kSlowCosts));
    times_.ready[static_cast<int>(HostEvent::kFetch)].resize(plan_.fetches.size());
    times_.ready[static_cast<int>(HostEvent::kGradient)].resize(2);
    times_.ready[static_cast<int>(HostEvent::kUpdate)].resize(trace_.ranges.size());
  }
  Simulation Play() {
    Playback playback(trace_, plan_, kSlowCosts, FetchChoice::kInOrder,
                      PlaybackNotes::kHostUsesAndEvents);
    playback.set_host_times(&times_);
    Simulation played = playback.PlayToSteadyState();
    accesses_ = playback.host_accesses();
    return played;
  }
  // When the event asks, in a round that waits for nothing.
  int64_t AskedNs(HostEvent event, int32_t index) {
    for (const HostAccess& access : accesses_) {
      if (access.event == event && access.index == index) return access.asked_ns;
    }
    ADD_FAILURE() << "no event " << static_cast<int>(event) << " of index " << index;
    return 0;
  }
  // Its first chunk is ready, or its last one's turn is, so much after the beginning of the round:
  // it is one chunk, so that is the same.
  void ExpectSameFor(HostEvent event, int32_t index, int64_t rounds_after, int64_t ns,
                     absl::FunctionRef<void(const Simulation&)> expect) {
    HostReady& ready = times_.ready[static_cast<int>(event)][index];
    ready = {.rounds_after = rounds_after, .first_ns = ns};
    expect(Play());
    ready = {.rounds_after = rounds_after, .last_ns = ns};
    expect(Play());
  }
  static int64_t Stalls(const Simulation& played, StallCause cause) {
    return played.totals.stall_ns[static_cast<int>(cause)];
  }

  const RangeTrace trace_ = TwoLayers();
  Plan plan_;
  HostTimes times_;
  std::vector<HostAccess> accesses_;
};

TEST_F(HostTimesTest, WhatIsReadyInTimeTakesNoTime) {
  EXPECT_EQ(Play().totals.round_ns, kRoundNs);
  EXPECT_EQ(accesses_.size(), 6u);  // Two fetches, gradients and updates.
}

TEST_F(HostTimesTest, AFetchWaitsForItsChunk) {
  Play();
  const auto first = std::find_if(plan_.fetches.begin(), plan_.fetches.end(),
                                  [](const PlannedFetch& fetch) { return fetch.range == 0; });
  const auto index = static_cast<int32_t>(first - plan_.fetches.begin());
  const int64_t asked_ns = AskedNs(HostEvent::kFetch, index) - kRoundNs;
  ExpectSameFor(HostEvent::kFetch, index, 1, asked_ns + 3'000, [](const Simulation& played) {
    EXPECT_EQ(played.totals.round_ns, kRoundNs + 3'000);
    // What waits behind the update, too, waits for its last cause.
    EXPECT_EQ(Stalls(played, StallCause::kNvme), kUpdateNs - 10 + 3'000 + kCopyNs);
    EXPECT_EQ(Stalls(played, StallCause::kUpdate), 0);
  });
}

TEST_F(HostTimesTest, AnUpdateWaitsForItsBundle) {
  Play();
  const int64_t asked_ns = AskedNs(HostEvent::kUpdate, 0) - kRoundNs;
  ExpectSameFor(HostEvent::kUpdate, 0, 1, asked_ns + 3'000, [](const Simulation& played) {
    EXPECT_EQ(played.totals.round_ns, kRoundNs + 3'000);
    EXPECT_EQ(Stalls(played, StallCause::kNvme), kUpdateNs - 10 + 3'000 + kCopyNs);
  });
}

TEST_F(HostTimesTest, AGradientWaitsForRoom) {
  Play();
  // The last one, for which the update waits in its own round.
  const int64_t asked_ns = AskedNs(HostEvent::kGradient, 1);
  ExpectSameFor(HostEvent::kGradient, 1, 0, asked_ns + 3'000, [](const Simulation& played) {
    EXPECT_EQ(played.totals.round_ns, kRoundNs + 3'000);
    EXPECT_EQ(Stalls(played, StallCause::kNvme), kCopyNs + 3'000);
    EXPECT_EQ(Stalls(played, StallCause::kTransfer), 0);
  });
}

TEST_F(HostTimesTest, ARoundTakesWhatNvmeTakes) {
  times_.least_round_ns = kRoundNs + 5'000;
  const Simulation played = Play();
  EXPECT_EQ(played.totals.round_ns, kRoundNs + 5'000);
  EXPECT_GE(Stalls(played, StallCause::kNvme), 5'000);
}

TEST(HostPlanTest, WhatIsUpdatedOnDeviceIsGivenUpBeforeItIsWrittenBack) {
  const RangeTrace trace = TwoLayers();
  CostModel costs = kCosts;
  costs.device_update_elements_per_second = 1e9;
  const PolicyOptions policy = {PolicyKind::kStatic, 0, /*optimizer_fraction=*/0.5};
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan({.trace = trace,
                                                  .budget_bytes = {{8 * kChunk, kChunk, 0}},
                                                  .costs = costs,
                                                  .policy = policy}));
  ASSERT_THAT(plan.device_updates, SizeIs(1));
  const BundleId bundle = trace.ranges[plan.device_updates[0].param()].first;
  const PlayedPlan played =
      PlayInHost(WithKeptGradients(trace, plan), plan, costs, kChunk, /*with_events=*/false);
  for (const ChunkKind kind : {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    std::vector<HostUseKind> uses;  // From the update on: it comes last.
    std::vector<HostUse> in_turn = played.host_uses;
    std::ranges::stable_sort(in_turn, {}, [](const HostUse& use) {
      return use.rounds_after * 1'000'000'000 + use.asked_ns;
    });
    for (const HostUse& use : in_turn) {
      if (use.chunk == ChunkOf(bundle, kind)) uses.push_back(use.kind);
    }
    const auto given_up = std::ranges::find(uses, HostUseKind::kGivesUp);
    ASSERT_NE(given_up, uses.end());
    ASSERT_NE(given_up + 1, uses.end());
    EXPECT_EQ(given_up[1], HostUseKind::kOverwrites);
  }
}

// What NVME moves for these uses when HOST gives up what was used longest ago, and reads nothing
// ahead.
std::pair<int64_t, int64_t> LruBytes(const std::vector<HostUse>& uses,
                                     const std::vector<int64_t>& slots) {
  struct Chunk {
    int64_t used = -1;  // In HOST, since.
    bool on_nvme = true;
  };
  std::map<std::pair<int32_t, int64_t>, Chunk> chunks;
  std::vector<std::map<int64_t, int64_t>> by_use(slots.size());
  std::pair<int64_t, int64_t> moved;
  int64_t clock = 0;
  for (int round = 0; round < 6; ++round) {
    moved = {};
    for (const HostUse& use : uses) {
      Chunk& chunk = chunks[{use.space, use.chunk.value()}];
      std::map<int64_t, int64_t>& in_host = by_use[use.space];
      const bool was_there = chunk.used >= 0;
      if (was_there) in_host.erase(chunk.used);
      chunk.used = -1;
      if (use.kind == HostUseKind::kGivesUp) {
        chunk.on_nvme = false;
        continue;
      }
      if (!was_there) {
        if (static_cast<int64_t>(in_host.size()) == slots[use.space]) {
          Chunk& victim = chunks[{use.space, in_host.begin()->second}];
          in_host.erase(in_host.begin());
          victim.used = -1;
          if (!std::exchange(victim.on_nvme, true)) moved.second += kChunk;
        }
        if (chunk.on_nvme && use.kind != HostUseKind::kOverwrites) moved.first += kChunk;
        if (KindOf(use.chunk) == ChunkKind::kGrad) chunk.on_nvme = false;
      }
      if (use.kind != HostUseKind::kReads) chunk.on_nvme = false;
      chunk.used = clock++;
      in_host[chunk.used] = use.chunk.value();
    }
  }
  return moved;
}

class HostPlanPropertyTest : public ::testing::TestWithParam<bool> {};

// Property: Simulate says what the prediction does, its events account for it, no direction of the
// disk has more to do than the round is long, and NVME hardly ever moves more than by LRU. It may:
// to read ahead, a chunk is given up before its room is needed.
TEST_P(HostPlanPropertyTest, NvmeMovesNoMoreThanByLru) {
  std::vector<double> of_lru;
  for (uint64_t seed = 0; seed < 220; ++seed) {
    SCOPED_TRACE(seed);
    RandomTraceOptions options = DrawOptions(seed, GetParam());
    options.num_tensors += 20;
    const RangeTrace trace = *PackTrace(RandomTrace(options, seed).Make(), kChunk);
    CostModel costs = kCosts;
    costs.update_elements_per_second = 1e9;
    costs.nvme_read = costs.nvme_write = seed % 3 == 0 ? 1e8 : 1e9;
    if (seed % 2 == 0) costs.device_update_elements_per_second = 1e9;
    int64_t chunks = 0;
    for (const int64_t of_space : trace.chunks_of_space) chunks += of_space;
    const int64_t host_bytes = chunks * static_cast<int64_t>(1 + seed % 4) / 5 * kChunk;
    const int64_t device_bytes =
        DeviceFloorBytes(trace) + static_cast<int64_t>(seed % 5) * 2 * kChunk;
    ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFor(trace, device_bytes, host_bytes, costs));
    ASSERT_OK_AND_ASSIGN(const Simulation played, Simulate(trace, plan, costs, true, host_bytes));
    ASSERT_EQ(played.totals, plan.prediction);
    std::map<Lane, int64_t> bytes;
    int64_t stall_ns = 0;
    for (const SimulatedEvent& event : played.events) {
      bytes[event.lane] += event.size_bytes;
      stall_ns += event.stall_ns;
      ASSERT_GE(event.begin_ns, 0);
      ASSERT_LT(event.begin_ns, played.totals.round_ns);
    }
    const Prediction& totals = played.totals;
    EXPECT_EQ(bytes[Lane::kNvmeRead], totals.nvme_read_bytes);
    EXPECT_EQ(bytes[Lane::kNvmeWrite], totals.nvme_write_bytes);
    EXPECT_EQ(totals.compute_ns + stall_ns, totals.round_ns);
    const double most_bytes =
        static_cast<double>(std::max(totals.nvme_read_bytes, totals.nvme_write_bytes));
    EXPECT_GE(static_cast<double>(totals.round_ns), 0.99 * most_bytes * 1e9 / costs.nvme_read);

    const PlayedPlan in_host =
        PlayInHost(WithKeptGradients(trace, plan), plan, costs, host_bytes, false);
    EXPECT_EQ(PlannedHostUses(in_host.host_uses), plan.host_uses);
    const auto [read, written] = LruBytes(in_host.host_uses, SlotsOfSpaces(trace, host_bytes));
    if (read + written == 0) {
      EXPECT_EQ(totals.nvme_read_bytes + totals.nvme_write_bytes, 0);
      continue;
    }
    of_lru.push_back(static_cast<double>(totals.nvme_read_bytes + totals.nvme_write_bytes) /
                     static_cast<double>(read + written));
  }
  std::sort(of_lru.begin(), of_lru.end());
  ASSERT_GT(of_lru.size(), 150u);
  EXPECT_LT(of_lru[of_lru.size() / 2], 0.9);
  EXPECT_LT(of_lru[of_lru.size() * 9 / 10], 1.01);
  EXPECT_LT(of_lru.back(), 1.1);
}

INSTANTIATE_TEST_SUITE_P(Chunks, HostPlanPropertyTest, ::testing::Values(false),
                         [](const auto&) { return std::string("One"); });
INSTANTIATE_TEST_SUITE_P(Runs, HostPlanPropertyTest, ::testing::Values(true),
                         [](const auto&) { return std::string("Several"); });

}  // namespace
}  // namespace gemini::policies
