// SPDX-License-Identifier: Apache-2.0
#include "client/device/residency.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <random>
#include <thread>

#include "client/copy/copy_engine_host.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;
using Use = DeviceBudget::Use;

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kGrad = ChunkKind::kGrad;

class ResidencyTest : public SessionFixture {
 protected:
  // Opens a space of which every bundle's parameter is committed with its number as tag.
  void Open(int64_t num_bundles, int64_t device_slots, int64_t host_slots, int64_t nvme_slots) {
    OpenSession(device_slots, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("space", num_bundles, host_slots, nvme_slots);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < num_bundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
    }
  }
  Residency& residency() { return session_->residency(); }
  DeviceBudget& budget() { return session_->device_budget(); }
  RangeId ParamRange(int64_t first, int64_t num_bundles = 1) {
    return residency().AddRange(*store_, BundleId(first), num_bundles, kParam);
  }
  RangeId GradRange(int64_t first, int64_t num_bundles = 1) {
    return residency().AddRange(*store_, BundleId(first), num_bundles, kGrad);
  }
  absl::StatusOr<std::byte*> Pin(RangeId range) {
    std::byte* address = nullptr;
    const absl::Status status = residency().Pin({&range, 1}, {&address, 1});
    if (!status.ok()) return status;
    return address;
  }
  // Pins, checks the tag, and unpins, as a reader.
  void ExpectTag(RangeId range, uint64_t tag) {
    ASSERT_OK_AND_ASSIGN(const std::byte* address, Pin(range));
    EXPECT_TRUE(ChunkHolds(address, tag)) << "range " << range.value() << " tag " << tag;
    residency().Unpin(range, /*dirty=*/false);
  }
  int64_t Evicted() { return residency().stats().evict_bytes / kTestChunkBytes; }
  int64_t Fetched() { return residency().stats().fetch_bytes / kTestChunkBytes; }

  ChunkStore* store_ = nullptr;
};

TEST_F(ResidencyTest, APinFetchesOnceAndGivesTheBytes) {
  Open(3, /*device_slots=*/2, /*host_slots=*/4, 0);
  if (HasFatalFailure()) return;
  const RangeId range = ParamRange(1);
  EXPECT_EQ(ParamRange(1), range);
  ASSERT_OK_AND_ASSIGN(std::byte * first, Pin(range));
  EXPECT_TRUE(ChunkHolds(first, 1));
  ASSERT_OK_AND_ASSIGN(std::byte * second, Pin(range));
  EXPECT_EQ(first, second);
  EXPECT_EQ(Fetched(), 1);
  EXPECT_EQ(budget().used_bytes(), kTestChunkBytes);
  auto seen = Look("space").at(ChunkOf(BundleId(1), kParam).value());
  EXPECT_EQ(seen.state, ChunkState::kCompute);
  EXPECT_EQ(seen.pins, 2);
  residency().Unpin(range, false);
  residency().Unpin(range, false);
  seen = Look("space").at(ChunkOf(BundleId(1), kParam).value());
  EXPECT_EQ(seen.state, ChunkState::kHold);
  EXPECT_EQ(seen.tier, Tier::kDevice);
}

TEST_F(ResidencyTest, TheLeastRecentlyUsedGivesWay) {
  Open(3, /*device_slots=*/2, /*host_slots=*/4, 0);
  if (HasFatalFailure()) return;
  ExpectTag(ParamRange(0), 0);
  ExpectTag(ParamRange(1), 1);
  ExpectTag(ParamRange(0), 0);
  ExpectTag(ParamRange(2), 2);  // 1 goes.
  EXPECT_EQ(Fetched(), 3);
  ExpectTag(ParamRange(0), 0);
  EXPECT_EQ(Fetched(), 3);
  ExpectTag(ParamRange(1), 1);
  EXPECT_EQ(Fetched(), 4);
}

TEST_F(ResidencyTest, WriterDirties) {
  Open(4, /*device_slots=*/2, /*host_slots=*/6, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(ParamRange(0)));
  FillChunk(address, 77);
  residency().Unpin(ParamRange(0), /*dirty=*/true);
  EXPECT_TRUE(Look("space").at(ChunkOf(BundleId(0), kParam).value()).dirty);
  for (int64_t i = 1; i < 4; ++i) ExpectTag(ParamRange(i), i);
  EXPECT_EQ(Evicted(), 1);  // The one that was written; those that were only read are not.
  ExpectTag(ParamRange(0), 77);
  for (int64_t i = 1; i < 4; ++i) ExpectTag(ParamRange(i), i);
  EXPECT_EQ(Evicted(), 1);
  // Written back out of place, at the same step; the old slot is free again.
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), 0);
  EXPECT_EQ(store_->stored_bytes().host_bytes, 4 * kTestChunkBytes);
  ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(ChunkOf(BundleId(0), kParam)));
  EXPECT_TRUE(ChunkHolds(host.data(), 77));
}

TEST_F(ResidencyTest, OneOfTwoPinsThatWroteIsEnough) {
  Open(3, /*device_slots=*/1, /*host_slots=*/5, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(ParamRange(0)));
  ASSERT_OK(Pin(ParamRange(0)));
  FillChunk(address, 9);
  residency().Unpin(ParamRange(0), /*dirty=*/true);
  residency().Unpin(ParamRange(0), /*dirty=*/false);
  ExpectTag(ParamRange(1), 1);
  ExpectTag(ParamRange(0), 9);
}

TEST_F(ResidencyTest, ASetIsPinnedWholeOrNotAtAll) {
  Open(4, /*device_slots=*/2, /*host_slots=*/5, 0);
  if (HasFatalFailure()) return;
  ExpectTag(ParamRange(3), 3);
  const std::vector<RangeId> three = {ParamRange(0), ParamRange(1), ParamRange(2)};
  std::vector<std::byte*> addresses(3);
  EXPECT_THAT(residency().Pin(three, absl::MakeSpan(addresses)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::AllOf(HasSubstr("needs 12 KiB"), HasSubstr("budget is 8 KiB"),
                                        HasSubstr("raise --device-memory to at least 12 KiB"))));
  for (const SeenChunk& chunk : Look("space")) EXPECT_EQ(chunk.pins, 0);
  // Nothing was evicted for it, and a set that fits is pinned, with repeats.
  EXPECT_EQ(Fetched(), 1);
  const std::vector<RangeId> two = {ParamRange(0), ParamRange(1), ParamRange(0)};
  ASSERT_OK(residency().Pin(two, absl::MakeSpan(addresses)));
  EXPECT_EQ(addresses[0], addresses[2]);
  EXPECT_TRUE(ChunkHolds(addresses[0], 0) && ChunkHolds(addresses[1], 1));
  EXPECT_THAT(Pin(ParamRange(2)), StatusIs(absl::StatusCode::kResourceExhausted));
  for (const RangeId range : two) residency().Unpin(range, false);
  ExpectTag(ParamRange(2), 2);
  EXPECT_EQ(residency().stats().pinned_peak_bytes, 2 * kTestChunkBytes);
}

TEST_F(ResidencyTest, APinThatFailsOnAFreeChunkPinsNothing) {
  Open(3, /*device_slots=*/2, /*host_slots=*/5, 0);
  if (HasFatalFailure()) return;
  const std::vector<RangeId> set = {ParamRange(0), GradRange(0)};
  std::vector<std::byte*> addresses(2);
  EXPECT_THAT(residency().Pin(set, absl::MakeSpan(addresses)),
              StatusIs(absl::StatusCode::kNotFound));
  for (const SeenChunk& chunk : Look("space")) EXPECT_EQ(chunk.pins, 0);
  EXPECT_EQ(budget().used_bytes(), 0);
  EXPECT_EQ(store_->stored_bytes().host_bytes, 3 * kTestChunkBytes);
  ExpectTag(ParamRange(0), 0);
}

TEST_F(ResidencyTest, ATensorThatSpansChunksIsOneRun) {
  Open(8, /*device_slots=*/4, /*host_slots=*/10, 0);
  if (HasFatalFailure()) return;
  const RangeId wide = ParamRange(2, 3);
  for (int64_t i : {0, 1, 6, 7}) ExpectTag(ParamRange(i), i);
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(wide));
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(ChunkHolds(address + i * kTestChunkBytes, 2 + i));
    FillChunk(address + i * kTestChunkBytes, 200 + i);
  }
  residency().Unpin(wide, true);
  for (int64_t i : {0, 1, 6, 7}) ExpectTag(ParamRange(i), i);
  EXPECT_EQ(Evicted(), 3);
  ASSERT_OK_AND_ASSIGN(address, Pin(wide));
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(ChunkHolds(address + i * kTestChunkBytes, 200 + i));
  residency().Unpin(wide, false);
}

TEST_F(ResidencyTest, AWantedRangeThatSplitsTheRoomIsMoved) {
  // Five slots. Singles lie at the top, so one of them ends up in the middle when those around it
  // go.
  Open(10, /*device_slots=*/5, /*host_slots=*/12, 0);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 5; ++i) ExpectTag(ParamRange(i), i);
  ASSERT_OK_AND_ASSIGN(std::byte * middle, Pin(ParamRange(2)));
  FillChunk(middle, 222);
  residency().Unpin(ParamRange(2), /*dirty=*/true);
  for (const int64_t i : {0, 1, 3, 4}) ASSERT_OK(residency().Drop(ParamRange(i)));
  const std::vector<RangeId> set = {ParamRange(2), ParamRange(5, 4)};
  std::vector<std::byte*> addresses(2);
  ASSERT_OK(residency().Pin(set, absl::MakeSpan(addresses)));
  EXPECT_TRUE(ChunkHolds(addresses[0], 222));
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(ChunkHolds(addresses[1] + i * kTestChunkBytes, 5 + i));
  }
  EXPECT_EQ(budget().used_bytes(), 5 * kTestChunkBytes);
  for (const RangeId range : set) residency().Unpin(range, false);
}

TEST_F(ResidencyTest, NonModelDataPushesChunksOut) {
  Open(4, /*device_slots=*/4, /*host_slots=*/6, 0);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 4; ++i) ExpectTag(ParamRange(i), i);
  EXPECT_FALSE(budget().TryCharge(Use::kNonModel, 1));
  EXPECT_TRUE(residency().MakeRoom(kTestChunkBytes + 1));
  ASSERT_TRUE(budget().TryCharge(Use::kNonModel, kTestChunkBytes + 1));
  // Two chunks gave way, the oldest; there is room for two still, in four slots.
  const int64_t fetched = Fetched();
  ExpectTag(ParamRange(2), 2);
  ExpectTag(ParamRange(3), 3);
  EXPECT_EQ(Fetched(), fetched);
  ExpectTag(ParamRange(0), 0);
  EXPECT_LE(budget().used_bytes(), 4 * kTestChunkBytes);
  // Pinned chunks do not give way.
  ASSERT_OK(Pin(ParamRange(0)));
  EXPECT_FALSE(residency().MakeRoom(2 * kTestChunkBytes));
  EXPECT_TRUE(residency().MakeRoom(kTestChunkBytes));
  residency().Unpin(ParamRange(0), false);
  budget().Release(Use::kNonModel, kTestChunkBytes + 1);
}

TEST_F(ResidencyTest, ASmallerBudgetVacatesTheSlotsBehindItAndALargerOneUsesThem) {
  Open(6, /*device_slots=*/6, /*host_slots=*/9, 0);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 6; ++i) ExpectTag(ParamRange(i), i);
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(ParamRange(0)));  // Single chunks begin at the top.
  FillChunk(address, 60);
  EXPECT_THAT(residency().SetBudget(2 * kTestChunkBytes + 8),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("pinned")));
  EXPECT_EQ(residency().num_slots(), 2);
  residency().Unpin(ParamRange(0), /*dirty=*/true);
  ASSERT_OK(residency().SetBudget(2 * kTestChunkBytes + 8));
  EXPECT_LE(budget().used_bytes(), 2 * kTestChunkBytes);
  std::byte* const end = session_->residency().num_slots() * kTestChunkBytes + address;
  for (int64_t i = 1; i < 6; ++i) {
    ASSERT_OK_AND_ASSIGN(address, Pin(ParamRange(i)));
    EXPECT_LT(address, end);
    EXPECT_TRUE(ChunkHolds(address, i));
    residency().Unpin(ParamRange(i), false);
    EXPECT_LE(budget().used_bytes(), 2 * kTestChunkBytes);
  }
  ExpectTag(ParamRange(0), 60);
  // Non-model data does not give way.
  ASSERT_TRUE(residency().MakeRoom(2 * kTestChunkBytes));
  ASSERT_TRUE(budget().TryCharge(Use::kNonModel, 2 * kTestChunkBytes));
  EXPECT_THAT(residency().SetBudget(kTestChunkBytes),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("8 KiB of activations")));
  budget().Release(Use::kNonModel, 2 * kTestChunkBytes);
  ASSERT_OK(residency().SetBudget(6 * kTestChunkBytes));
  const int64_t fetched = Fetched();
  for (int64_t i = 0; i < 6; ++i) ExpectTag(ParamRange(i), i == 0 ? 60 : i);
  for (int64_t i = 0; i < 6; ++i) ExpectTag(ParamRange(i), i == 0 ? 60 : i);
  EXPECT_LE(Fetched(), fetched + 6);
}

TEST_F(ResidencyTest, APinFitsWhileASmallerBudgetIsStillInTheWayOfAHeldChunk) {
  Open(7, /*device_slots=*/6, /*host_slots=*/10, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(Pin(ParamRange(0)).status());  // In the last slot, which is to be vacated.
  for (int64_t i = 1; i < 6; ++i) ExpectTag(ParamRange(i), i);
  EXPECT_THAT(residency().SetBudget(3 * kTestChunkBytes),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_GT(budget().used_bytes(), budget().budget_bytes());
  ExpectTag(ParamRange(6), 6);
  EXPECT_LE(budget().used_bytes(), budget().budget_bytes());
  residency().Unpin(ParamRange(0), /*dirty=*/false);
  EXPECT_OK(residency().SetBudget(3 * kTestChunkBytes));
}

TEST_F(ResidencyTest, MakeRoomWritesBackWhatIsDirty) {
  Open(2, /*device_slots=*/2, /*host_slots=*/4, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(ParamRange(1)));
  FillChunk(address, 50);
  residency().Unpin(ParamRange(1), true);
  EXPECT_TRUE(residency().MakeRoom(2 * kTestChunkBytes));
  EXPECT_EQ(budget().used_bytes(), 0);
  EXPECT_EQ(Evicted(), 1);
  ExpectTag(ParamRange(1), 50);
}

TEST_F(ResidencyTest, AWriteGoesWhereTheNewestBytesAre) {
  Open(2, /*device_slots=*/2, /*host_slots=*/5, 0);
  if (HasFatalFailure()) return;
  std::vector<std::byte> bytes(kTestChunkBytes);
  FillChunk(bytes.data(), 1);
  const RangeId grad = GradRange(0);
  ASSERT_OK(residency().Write(grad, 0, bytes.data(), kTestChunkBytes));  // FREE to HOLD, in HOST.
  EXPECT_EQ(budget().used_bytes(), 0);
  ExpectTag(grad, 1);
  FillChunk(bytes.data(), 2);
  ASSERT_OK(residency().Write(grad, 0, bytes.data(), kTestChunkBytes));  // On DEVICE.
  EXPECT_TRUE(Look("space").at(ChunkOf(BundleId(0), kGrad).value()).dirty);
  ExpectTag(grad, 2);
  ASSERT_OK(residency().Flush(grad));
  ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(ChunkOf(BundleId(0), kGrad)));
  EXPECT_TRUE(ChunkHolds(host.data(), 2));
  EXPECT_THAT(residency().Write(ParamRange(0), 0, bytes.data(), 8),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(residency().Write(grad, 8, bytes.data(), kTestChunkBytes),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ResidencyTest, APartialWriteAcrossChunksLeavesTheRestZero) {
  Open(3, /*device_slots=*/3, /*host_slots=*/8, 0);
  if (HasFatalFailure()) return;
  const RangeId wide = GradRange(0, 3);
  const std::vector<std::byte> bytes(2 * kTestChunkBytes, std::byte{9});
  ASSERT_OK(residency().Write(wide, kTestChunkBytes / 2, bytes.data(), 2 * kTestChunkBytes));
  ASSERT_OK_AND_ASSIGN(const std::byte* address, Pin(wide));
  for (int64_t i = 0; i < 3 * kTestChunkBytes; ++i) {
    const bool inside = i >= kTestChunkBytes / 2 && i < 5 * kTestChunkBytes / 2;
    ASSERT_EQ(address[i], inside ? std::byte{9} : std::byte{0}) << i;
  }
  residency().Unpin(wide, false);
}

TEST_F(ResidencyTest, DropForgetsAndFlushWritesBackOnlyUnpinned) {
  Open(2, /*device_slots=*/2, /*host_slots=*/5, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(ParamRange(0)));
  FillChunk(address, 5);
  EXPECT_THAT(residency().Flush(ParamRange(0)), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(residency().Drop(ParamRange(0)), StatusIs(absl::StatusCode::kFailedPrecondition));
  residency().Unpin(ParamRange(0), true);
  ASSERT_OK(residency().Drop(ParamRange(0)));
  ASSERT_OK(residency().Drop(ParamRange(0)));
  EXPECT_EQ(budget().used_bytes(), 0);
  ExpectTag(ParamRange(0), 0);  // The write is gone, as asked.
  // The order around an update: flush, commit, drop.
  ASSERT_OK_AND_ASSIGN(address, Pin(ParamRange(0)));
  FillChunk(address, 6);
  residency().Unpin(ParamRange(0), true);
  ASSERT_OK(residency().Flush(ParamRange(0)));
  EXPECT_EQ(Evicted(), 1);
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 1, 7));
  ASSERT_OK(residency().Drop(ParamRange(0)));
  ExpectTag(ParamRange(0), 7);
  EXPECT_EQ(Evicted(), 1);
}

TEST_F(ResidencyTest, ASlotIsReusedOnlyWhenItsBytesHaveLeft) {
  // Large enough for the copy workers. The evicting one is kept busy, so that a fetch which did not
  // wait for the write-back of the same slot would overtake it.
  chunk_bytes_ = 1 << 20;
  Open(2, /*device_slots=*/1, /*host_slots=*/4, 0);
  if (HasFatalFailure()) return;
  CopyEngineHost copies;
  DeviceBudget own_budget(chunk_bytes_);
  std::vector<std::byte> arena(chunk_bytes_);
  Residency own(own_budget, copies, arena.data(), /*num_slots=*/1, chunk_bytes_);
  const std::vector<std::byte> ballast(64 << 20);
  std::vector<std::byte> ballast_copy(ballast.size());
  for (int64_t round = 0; round < 4; ++round) {
    const RangeId range = own.AddRange(*store_, BundleId(round % 2), 1, kParam);
    copies.Copy(CopyStream::kEvict, ballast_copy.data(), ballast.data(), ballast.size(), {});
    std::byte* address = nullptr;
    ASSERT_OK(own.Pin({&range, 1}, {&address, 1}));
    const uint64_t tag = static_cast<uint64_t>(round < 2 ? round : round + 98);
    ASSERT_TRUE(ChunkHolds(address, tag, chunk_bytes_)) << "round " << round;
    FillChunk(address, round + 100, chunk_bytes_);
    own.Unpin(range, /*dirty=*/true);
  }
  EXPECT_EQ(own.stats().evict_bytes, 3 * chunk_bytes_);
}

TEST_F(ResidencyTest, WaitsForAWriteAndForRoomAreStallsWithTheirCause) {
  chunk_bytes_ = 1 << 20;
  Open(2, /*device_slots=*/1, /*host_slots=*/6, 0);
  if (HasFatalFailure()) return;
  constexpr int64_t kLeastNs = 1'000'000'000 / 16;  // Of a chunk over this link.
  CopyEngineHost copies({0, 16 * chunk_bytes_});
  DeviceBudget own_budget(chunk_bytes_);
  std::vector<std::byte> arena(chunk_bytes_), bytes(chunk_bytes_);
  Residency own(own_budget, copies, arena.data(), /*num_slots=*/1, chunk_bytes_);
  const auto stall_ns = [&own](StallCause cause) {
    return own.stats().stall_by_cause_ns[static_cast<size_t>(cause)];
  };
  const RangeId grad = own.AddRange(*store_, BundleId(0), 1, kGrad);
  ASSERT_OK_AND_ASSIGN(PendingWrite write, own.BeginWrite(grad, 0, bytes.data(), chunk_bytes_));
  own.AwaitWrite(grad, write);
  // The link was begun to be used a little before the wait.
  EXPECT_GE(stall_ns(StallCause::kTransfer), kLeastNs / 2);
  const int64_t transfer_ns = stall_ns(StallCause::kTransfer);
  own.AwaitWrite(grad, write);
  EXPECT_EQ(stall_ns(StallCause::kTransfer), transfer_ns);

  const RangeId param = own.AddRange(*store_, BundleId(1), 1, kParam);
  std::byte* address = nullptr;
  ASSERT_OK(own.Pin({&param, 1}, {&address, 1}));
  own.Unpin(param, /*dirty=*/true);
  EXPECT_EQ(stall_ns(StallCause::kRoom), 0);
  EXPECT_TRUE(own.MakeRoom(0));
  EXPECT_EQ(stall_ns(StallCause::kRoom), 0);
  EXPECT_TRUE(own.MakeRoom(chunk_bytes_));
  EXPECT_GE(stall_ns(StallCause::kRoom), kLeastNs);
}

TEST_F(ResidencyTest, ADirtyRangeThatFindsNoRoomInHostStaysOnDevice) {
  Open(2, /*device_slots=*/1, /*host_slots=*/3, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(std::byte * address, Pin(ParamRange(0)));
  FillChunk(address, 5);
  residency().Unpin(ParamRange(0), true);
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk spare, store_->AcquireSpare());
    EXPECT_THAT(Pin(ParamRange(1)),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--host-memory")));
    EXPECT_FALSE(residency().MakeRoom(kTestChunkBytes));
    EXPECT_EQ(budget().used_bytes(), kTestChunkBytes);
  }
  ExpectTag(ParamRange(1), 1);
  ExpectTag(ParamRange(0), 5);
}

TEST_F(ResidencyTest, AServerThatIsGoneMakesAPinUnavailableAndLeavesNothingPinned) {
  Open(12, /*device_slots=*/2, /*host_slots=*/4, /*nvme_slots=*/12);
  if (HasFatalFailure()) return;
  server_.reset();
  std::vector<RangeId> set = {ParamRange(11), ParamRange(0)};
  std::vector<std::byte*> addresses(2);
  EXPECT_THAT(residency().Pin(set, absl::MakeSpan(addresses)),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(budget().used_bytes(), 0);
  ExpectTag(ParamRange(11), 11);
}

// What one random run left behind: every chunk's bytes.
using Contents = std::map<int64_t, std::vector<std::byte>>;

class PlacementTest : public ResidencyTest {
 protected:
  static constexpr int64_t kBundles = 14;

  // Random pins, writes, updates and allocations, the same whatever the slots; checks against a
  // model.
  void Run(uint64_t seed, int64_t device_slots, int64_t host_slots, int64_t nvme_slots,
           Contents& contents) {
    session_.reset();
    Open(kBundles, device_slots, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    if (HasFatalFailure()) return;
    std::mt19937_64 random(seed);
    std::vector<RangeId> ranges;
    std::vector<int64_t> widths, firsts;
    for (int64_t first = 0; first < kBundles; first += widths.back()) {
      widths.push_back(first + 3 < kBundles && first % 5 == 2 ? 3 : 1);
      firsts.push_back(first);
    }
    const size_t half = widths.size();
    for (size_t i = 0; i < half; ++i) ranges.push_back(ParamRange(firsts[i], widths[i]));
    for (size_t i = 0; i < half; ++i) ranges.push_back(GradRange(firsts[i], widths[i]));
    std::map<size_t, uint64_t> model;  // Tag of range i's first chunk; the rest follow.
    for (size_t i = 0; i < half; ++i) model[i] = firsts[i];
    std::vector<int64_t> steps(half, 0);
    const auto holds = [&](size_t i, const std::byte* at) {
      bool all = true;
      for (int64_t c = 0; c < widths[i % half]; ++c) {
        all &= ChunkHolds(at + c * kTestChunkBytes, model[i] + c);
      }
      return all;
    };
    const auto fill = [&](size_t i, std::byte* at, uint64_t tag) {
      model[i] = tag;
      for (int64_t c = 0; c < widths[i % half]; ++c) FillChunk(at + c * kTestChunkBytes, tag + c);
    };
    for (int64_t step = 0; step < 1500; ++step) {
      const size_t i = random() % ranges.size();
      const uint64_t tag = 1000 + 10 * static_cast<uint64_t>(step);
      const uint64_t action = random() % 10;
      const uint64_t dice = random();
      if (i >= half && (action == 0 || !model.contains(i))) {
        std::vector<std::byte> bytes(widths[i - half] * kTestChunkBytes);
        fill(i, bytes.data(), tag);
        ASSERT_OK(residency().Write(ranges[i], 0, bytes.data(), bytes.size()));
      } else if (i >= half && action == 1) {
        ASSERT_OK(residency().Drop(ranges[i]));
        for (int64_t c = 0; c < widths[i - half]; ++c) {
          store_->Free(ChunkOf(BundleId(firsts[i - half] + c), kGrad));
        }
        model.erase(i);
      } else if (i < half && action == 0) {
        // An update of the parameter's bundles.
        ASSERT_OK(residency().Flush(ranges[i]));
        ++steps[i];
        model[i] = tag;
        for (int64_t c = 0; c < widths[i]; ++c) {
          ASSERT_OK(CommitTag(*store_, BundleId(firsts[i] + c), kParam, steps[i], tag + c));
        }
        ASSERT_OK(residency().Drop(ranges[i]));
      } else if (action == 2) {
        residency().MakeRoom(static_cast<int64_t>(dice % 3) * kTestChunkBytes);
      } else {
        // An operator: reads one range and another, writes the first now and then.
        std::vector<size_t> set = {i};
        const size_t other = (i + 1 + dice % (ranges.size() - 1)) % ranges.size();
        if (dice % 2 == 0 && model.contains(other)) set.push_back(other);
        std::vector<RangeId> ids;
        for (const size_t s : set) ids.push_back(ranges[s]);
        std::vector<std::byte*> addresses(ids.size());
        ASSERT_OK(residency().Pin(ids, absl::MakeSpan(addresses)));
        for (size_t s = 0; s < set.size(); ++s) ASSERT_TRUE(holds(set[s], addresses[s])) << step;
        const bool write = dice % 5 == 0;
        if (write) fill(i, addresses[0], tag);
        for (size_t s = 0; s < set.size(); ++s) residency().Unpin(ids[s], write && s == 0);
      }
      ASSERT_LE(budget().used_bytes(), budget().budget_bytes());
    }
    for (const SeenChunk& chunk : Look("space")) {
      ASSERT_FALSE(chunk.invalid);
      ASSERT_EQ(chunk.pins, 0);
    }
    EXPECT_EQ(budget().peak_bytes() > 0, true);
    for (size_t i = 0; i < ranges.size(); ++i) {
      ASSERT_OK(residency().Flush(ranges[i]));
      for (int64_t c = 0; model.contains(i) && c < widths[i % half]; ++c) {
        const ChunkId chunk = ChunkOf(BundleId(firsts[i % half] + c), i < half ? kParam : kGrad);
        ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(chunk));
        contents[chunk.value()].assign(host.data(), host.data() + kTestChunkBytes);
        ASSERT_TRUE(ChunkHolds(host.data(), model[i] + c));
      }
    }
  }
};

TEST_F(PlacementTest, PlacementInvariance) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Contents ample, tight, tightest;
    Run(seed, /*device_slots=*/40, /*host_slots=*/60, /*nvme_slots=*/0, ample);
    if (HasFatalFailure()) return;
    Run(seed, /*device_slots=*/7, /*host_slots=*/32, /*nvme_slots=*/0, tight);
    if (HasFatalFailure()) return;
    Run(seed, /*device_slots=*/6, /*host_slots=*/3, /*nvme_slots=*/32, tightest);
    if (HasFatalFailure()) return;
    EXPECT_GT(store_->stored_bytes().nvme_read_bytes, 0);
    EXPECT_EQ(ample, tight);
    EXPECT_EQ(ample, tightest);
  }
}

TEST_F(ResidencyTest, ThreadsPinAndAllocateAtOnceWithinTheBudget) {
  constexpr int kThreads = 3;
  constexpr int64_t kEach = 12;  // More than DEVICE holds, for each thread alone.
  // Each thread pins two ranges at most and holds one chunk's worth of non-model data.
  Open(kThreads * kEach, /*device_slots=*/3 * kThreads, /*host_slots=*/kThreads * kEach + 4, 0);
  if (HasFatalFailure()) return;
  std::vector<RangeId> ranges;
  for (int64_t i = 0; i < kThreads * kEach; ++i) ranges.push_back(ParamRange(i));
  std::atomic<bool> over{false};
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<uint64_t> tags(kEach);
      for (int64_t i = 0; i < kEach; ++i) tags[i] = t * kEach + i;
      start.arrive_and_wait();
      for (int step = 1; step <= 2000; ++step) {
        const int64_t a = static_cast<int64_t>(random() % kEach);
        const int64_t b = static_cast<int64_t>(random() % kEach);
        const bool allocate = random() % 2 == 0;
        if (allocate) {
          while (!budget().TryCharge(Use::kNonModel, kTestChunkBytes)) {
            residency().MakeRoom(kTestChunkBytes);
          }
        }
        const std::vector<RangeId> set = {ranges[t * kEach + a], ranges[t * kEach + b]};
        std::vector<std::byte*> addresses(2);
        ASSERT_OK(residency().Pin(set, absl::MakeSpan(addresses)));
        ASSERT_TRUE(ChunkHolds(addresses[0], tags[a]) && ChunkHolds(addresses[1], tags[b]));
        const bool write = random() % 3 == 0;
        if (write) {
          tags[a] = static_cast<uint64_t>(step) * 100 + t;
          FillChunk(addresses[0], tags[a]);
        }
        residency().Unpin(set[0], write);
        residency().Unpin(set[1], false);
        if (allocate) budget().Release(Use::kNonModel, kTestChunkBytes);
        if (budget().used_bytes() > budget().budget_bytes()) over = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_GT(Evicted(), 100);
  EXPECT_LE(budget().peak_bytes(), budget().budget_bytes());
}

}  // namespace
}  // namespace gemini::client
