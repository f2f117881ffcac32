// SPDX-License-Identifier: Apache-2.0
// What a peer may ask of a server whose DEVICE is in slabs, of a driver whose memory is the process's own.
#include <limits>
#include <memory>
#include <utility>

#include "gemini/byte_size.h"
#include "gemini/lease_shm.h"
#include "server/embedded_server.h"
#include "server/tier_store_cuda.h"
#include "tests/fake_cuda_driver.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int64_t kSlab = 2 * kMiB;
constexpr int64_t kCapacity = 16 * kMiB;

class HostileCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = kCapacity + kMiB;  // Half a slab is nobody's.
    options.make_device = [this](int64_t capacity_bytes) {
      return MakeCudaTierStore(fake_.driver(), 0, capacity_bytes, kSlab);
    };
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
  }
  WireClient Connect(absl::string_view label, wire::Role role = wire::Role::kTrainer) {
    WireClient client(*server_->Connect());
    EXPECT_OK(client.Hello(label, role));
    return client;
  }
  // Descriptors of slabs from `first` on, or the refusal.
  static absl::StatusOr<size_t> TakeSlabs(WireClient& client, int64_t first) {
    flatbuffers::FlatBufferBuilder builder;
    const auto take = wire::CreateTakeSlabs(builder, /*space=*/0, first);
    const absl::StatusOr<WireReply> reply =
        client.Call(builder, wire::Body::TakeSlabs, take.Union());
    if (!reply.ok()) return reply.status();
    return reply->fds.size();
  }
  // All of DEVICE is there for one who asks.
  void ExpectAllFree() {
    WireClient client = Connect("all");
    ASSERT_OK_AND_ASSIGN(const WireLease lease,
                         client.OpenLease({{kCapacity, 0, 0}}, {{kCapacity, 0, 0}}));
    EXPECT_EQ(lease.granted[Tier::kDevice], kCapacity);
    EXPECT_OK(client.CloseSession());
  }

  FakeCudaDriver fake_{/*memory_bytes=*/kGiB, /*granularity_bytes=*/kSlab};
  std::unique_ptr<EmbeddedServer> server_;
};

TEST_F(HostileCudaTest, NobodyGetsSlabsBeyondTheLease) {
  WireClient observer = Connect("observer", wire::Role::kObserver);
  EXPECT_THAT(TakeSlabs(observer, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
  WireClient client = Connect("client");
  EXPECT_THAT(TakeSlabs(client, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(const WireLease lease,
                       client.OpenLease({{3 * kMiB, 0, 0}}, {{kMiB, 0, 0}}, true));
  EXPECT_EQ(lease.granted[Tier::kDevice], 2 * kSlab);
  for (const int64_t first : {int64_t{-1}, int64_t{3}, kHuge, -kHuge}) {
    EXPECT_THAT(TakeSlabs(client, first), StatusIs(absl::StatusCode::kInvalidArgument)) << first;
  }
  for (const auto& [first, count] : {std::pair(0, 2), {1, 1}, {2, 0}}) {
    EXPECT_THAT(TakeSlabs(client, first), IsOkAndHolds(count)) << first;
  }
  ASSERT_OK(client.CloseSession());
  ExpectAllFree();
}

TEST_F(HostileCudaTest, SizesThatAreNoSlabs) {
  for (const auto& [want, floor] : {std::pair(kHuge, kHuge), {kHuge, kCapacity + 1}}) {
    WireClient client = Connect("greedy");
    EXPECT_THAT(client.OpenLease({{want, 0, 0}}, {{floor, 0, 0}}),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_OK(client.CloseSession());
  }
  WireClient client = Connect("all");
  ASSERT_OK_AND_ASSIGN(const WireLease lease,
                       client.OpenLease({{kHuge, 0, 0}}, {{kCapacity - 1, 0, 0}}));
  EXPECT_EQ(lease.granted[Tier::kDevice], kCapacity);
  EXPECT_OK(client.CloseSession());
  ExpectAllFree();
}

TEST_F(HostileCudaTest, AnswersThatAreNoSlabs) {
  WireClient client = Connect("client");
  ASSERT_OK_AND_ASSIGN(const WireLease lease,
                       client.OpenLease({{kCapacity, 0, 0}}, {{kSlab, 0, 0}}, true));
  EXPECT_THAT(client.AckEpoch(0, kSlab), StatusIs(absl::StatusCode::kFailedPrecondition));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease({{3 * kSlab, 0, 0}}, {{3 * kSlab, 0, 0}}));
  while (lease.segment().epoch.load() == 0) {
  }
  const BudgetTarget target = ReadBudgetTarget(lease.segment());
  EXPECT_EQ(target.device_bytes, kCapacity - 3 * kSlab);
  for (const int64_t bytes : {target.device_bytes + 1, kHuge, int64_t{-1}}) {
    EXPECT_THAT(client.AckEpoch(target.epoch, bytes), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  ASSERT_OK(client.AckEpoch(target.epoch, 1));  // It may use less.
  EXPECT_THAT(TakeSlabs(client, 5), IsOkAndHolds(0u));
  EXPECT_THAT(TakeSlabs(client, 6), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(newcomer.ReceiveLease().status());
  ASSERT_OK(newcomer.CloseSession());
  ASSERT_OK(client.CloseSession());
  ExpectAllFree();
}

// The other leaves, which makes the lease grow, and the session ends while its slabs are being made, or are refused.
TEST_F(HostileCudaTest, ASessionThatEndsWhileItsLeaseGrows) {
  for (int round = 0; round < 40; ++round) {
    WireClient first = Connect("first");
    ASSERT_OK_AND_ASSIGN(const WireLease small, first.OpenLease({{kSlab, 0, 0}}, {{kSlab, 0, 0}}));
    WireClient second = Connect("second");
    ASSERT_OK_AND_ASSIGN(const WireLease growing,
                         second.OpenLease({{kCapacity, 0, 0}}, {{kSlab, 0, 0}}, true));
    EXPECT_EQ(growing.granted[Tier::kDevice], kCapacity - kSlab);
    if (round % 4 == 3) fake_.SetMemoryBytes(0);
    ASSERT_OK(first.CloseSession());
    if (round % 2 == 0) {
      // Or later: when it has been told.
      while (growing.segment().epoch.load() == 0) {
      }
    }
    ASSERT_OK(second.CloseSession());
    fake_.SetMemoryBytes(kGiB);
    ExpectAllFree();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace gemini::server
