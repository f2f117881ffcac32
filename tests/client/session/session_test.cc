// SPDX-License-Identifier: Apache-2.0
#include "client/session/session.h"

#include <limits>

#include "client/session/leased_device.h"
#include "gemini/byte_size.h"
#include "gemini/system/numa_nodes.h"
#include "gemini/system/update_team.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB16 = 16 << 20;

class SessionTest : public SessionFixture {};

TEST_F(SessionTest, GrantsWhatIsFreeAndNoMore) {
  ASSERT_OK_AND_ASSIGN(const auto session,
                       TryOpen(Bytes(kMiB16, 1 << 20, 1 << 20), Bytes(0, 0, 0)));
  EXPECT_EQ(session->granted_bytes()[Tier::kDevice], kMiB16);
  EXPECT_EQ(session->device_budget().budget_bytes(), kMiB16);
  ASSERT_OK_AND_ASSIGN(const auto second, TryOpen(Bytes(kMiB16, 1 << 20, 1 << 20), Bytes(0, 0, 0)));
  EXPECT_EQ(second->granted_bytes()[Tier::kDevice], 0);
}

TEST_F(SessionTest, ARefusalBelowTheFloorHasTheNumbers) {
  EXPECT_THAT(TryOpen(Bytes(kMiB16, 128 << 20, 0), Bytes(kMiB16, 96 << 20, 0)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::AllOf(HasSubstr("96 MiB"), HasSubstr("64 MiB"))));
}

TEST_F(SessionTest, CloseGivesEverythingBack) {
  for (int round = 0; round < 3; ++round) {
    const TierMap<int64_t> all = Bytes(kMiB16, 64 << 20, 64 << 20);
    ASSERT_OK_AND_ASSIGN(session_, TryOpen(all, all));
    ChunkStore* store = OpenSpace("round", 100, 64, 64);
    ASSERT_NE(store, nullptr);
    ASSERT_OK(CommitTag(*store, BundleId(0), ChunkKind::kParam, 0, 1));
    EXPECT_OK(session_->Close());
    EXPECT_OK(session_->Close());
    EXPECT_THAT(session_->OpenSpace({.name = "late", .num_bundles = 1, .host_slots = 1}),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
}

TEST_F(SessionTest, AChunkSizeThatIsNoPageMultipleIsRefused) {
  SessionOptions options;
  options.chunk_bytes = 1000;
  EXPECT_THAT(Session::Open(UniqueFd(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4096")));
}

TEST_F(SessionTest, UpdatesHaveAsManyThreadsAsAskedFor) {
  SessionOptions options;
  options.chunk_bytes = kTestChunkBytes;
  for (const int threads : {-1, kMaxUpdateThreads + 1}) {
    options.update_threads = threads;
    EXPECT_THAT(Session::Open(UniqueFd(), options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("threads for updates")));
  }
  options.update_threads = 3;
  ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
  ASSERT_OK_AND_ASSIGN(session_, Session::Open(std::move(socket), options));
  EXPECT_EQ(session_->update_team().num_threads(), 3);
  session_.reset();
  options.update_threads = 0;
  ASSERT_OK_AND_ASSIGN(socket, server_->Connect());
  ASSERT_OK_AND_ASSIGN(session_, Session::Open(std::move(socket), options));
  EXPECT_EQ(session_->update_team().num_threads(),
            DefaultUpdateThreads(static_cast<int>(AllowedProcessors().size())));
}

TEST_F(SessionTest, NoDaemonThereIsSaid) {
  SessionOptions options;
  options.chunk_bytes = kTestChunkBytes;
  EXPECT_THAT(Session::Open(directory_ + "/none.sock", options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("geminid")));
}

TEST_F(SessionTest, ASpaceBeyondTheLeaseIsRefusedAndTheSessionGoesOn) {
  OpenSession(/*device_slots=*/2, /*host_slots=*/8, /*nvme_slots=*/8);
  EXPECT_THAT(
      session_->OpenSpace({.name = "large", .num_bundles = 4, .host_slots = 9, .nvme_slots = 0}),
      StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(OpenSpace("fits", 4, 8, 8), nullptr);
}

TEST_F(SessionTest, SlabsOfASpaceAreOneRunOfSlots) {
  // More HOST than the last slab of one message; every slot is written and read back.
  constexpr int64_t kSlots = 600;
  OpenSession(2, kSlots, 0);
  ChunkStore* store = OpenSpace("wide", 200, kSlots, 0);
  ASSERT_NE(store, nullptr);
  std::vector<HostChunk> spares;
  for (int64_t i = 0; i < kSlots; ++i) {
    ASSERT_OK_AND_ASSIGN(HostChunk spare, store->AcquireSpare());
    FillChunk(spare.data(), i);
    spares.push_back(std::move(spare));
  }
  for (int64_t i = 0; i < kSlots; ++i) EXPECT_TRUE(ChunkHolds(spares[i].data(), i)) << i;
  EXPECT_EQ(store->stored_bytes().host_bytes, kSlots * kTestChunkBytes);
  spares.clear();
  EXPECT_EQ(store->stored_bytes().host_bytes, 0);
}

// What a step took is what came between two of them.
TEST_F(SessionTest, MemstatSeesWhatTheLastStepTookAndMoved) {
  OpenSession(4, 16, 0);
  ChunkStore* const store = OpenSpace("step", 4, 16, 0);
  ASSERT_NE(store, nullptr);
  const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
  const auto status = [&] {
    absl::StatusOr<Reply> reply = GetStatus(*observer);
    EXPECT_OK(reply);
    return *std::move(reply);
  };
  std::vector<RangeId> ranges;
  for (int64_t bundle = 0; bundle < 3; ++bundle) {
    ranges.push_back(session_->residency().AddRange(*store, BundleId(bundle), 1, ChunkKind::kGrad));
    ASSERT_OK_AND_ASSIGN(const HostChunk chunk,
                         store->AcquireToOverwrite(ChunkOf(BundleId(bundle), ChunkKind::kGrad)));
  }
  session_->PublishStep(1);
  const Reply first = status();
  EXPECT_EQ(first.As<wire::StatusReply>()->spaces()->Get(0)->step_ns(), 0);
  std::vector<std::byte*> addresses(3);
  ASSERT_OK(session_->residency().Pin(ranges, absl::MakeSpan(addresses)));
  for (const RangeId range : ranges) session_->residency().Unpin(range, range == ranges[0]);
  ASSERT_OK(session_->residency().Flush(ranges[0]));
  const int64_t stall_ns = session_->residency().stats().stall_ns;
  session_->PublishStep(2, /*outside_bytes=*/1000);
  const Reply reply = status();
  const wire::SpaceStatus& space = *reply.As<wire::StatusReply>()->spaces()->Get(0);
  EXPECT_EQ(space.step(), 2);
  EXPECT_EQ(space.step_fetch_bytes(), 3 * kTestChunkBytes);
  EXPECT_EQ(space.step_evict_bytes(), kTestChunkBytes);
  EXPECT_EQ(space.step_stall_ns(), stall_ns);
  EXPECT_GT(space.step_stall_ns(), 0);
  EXPECT_GE(space.step_ns(), space.step_stall_ns());
  EXPECT_EQ(space.device_non_model_bytes(), 1000);
  EXPECT_EQ(space.device_used_bytes(), 3 * kTestChunkBytes + 1000);
}

TEST_F(SessionTest, TheFirstErrorIsLatched) {
  OpenSession(2, 8, 0);
  EXPECT_OK(session_->status());
  session_->Latch(absl::OkStatus());
  session_->Latch(absl::DataLossError("first"));
  session_->Latch(absl::InternalError("second"));
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("first")));
}

TEST_F(SessionTest, AServerThatStopsMakesCloseUnavailableNotHang) {
  OpenSession(2, 8, 8);
  ASSERT_NE(OpenSpace("s", 4, 8, 8), nullptr);
  server_.reset();
  EXPECT_THAT(session_->Close(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(ReserveTimeoutTest, ItsSizesMayBeAnyNumbers) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ReserveTimeout({}), ReserveTimeout({kGiB - 1, 0}));
  EXPECT_EQ(ReserveTimeout({3 * kGiB, 2 * kGiB}) - ReserveTimeout({}), absl::Seconds(50));
  EXPECT_GT(ReserveTimeout({kMost, kMost}), ReserveTimeout({kMost}));
}

}  // namespace
}  // namespace gemini::client
