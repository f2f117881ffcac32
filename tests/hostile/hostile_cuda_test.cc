// SPDX-License-Identifier: Apache-2.0
// What a peer may ask of a server whose DEVICE is in slabs, of a driver whose memory is the
// process's own.
#include <limits>
#include <memory>
#include <utility>

#include "gemini/byte_size.h"
#include "gemini/shm/lease_shm.h"
#include "server/embedded_server.h"
#include "server/tiers/tier_store_cuda.h"
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
  EXPECT_THAT(observer.TakeDeviceSlabs(0, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(observer.KeepDeviceSlabs(0), StatusIs(absl::StatusCode::kFailedPrecondition));
  WireClient client = Connect("client");
  EXPECT_THAT(client.TakeDeviceSlabs(0, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(client.KeepDeviceSlabs(0), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(const WireLease lease,
                       client.OpenLease({{3 * kMiB, 0, 0}}, {{kMiB, 0, 0}}, true));
  EXPECT_EQ(lease.granted[Tier::kDevice], 2 * kSlab);
  const int64_t num_calls = fake_.num_calls();
  using Slabs = std::pair<int64_t, int64_t>;
  for (const auto& [first, count] :
       {Slabs(-1, 1), Slabs(3, 0), Slabs(kHuge, 1), Slabs(-kHuge, 1), Slabs(0, 3), Slabs(1, 1),
        Slabs(0, kHuge), Slabs(0, -1), Slabs(0, -kHuge), Slabs(kHuge, kHuge)}) {
    EXPECT_THAT(client.TakeDeviceSlabs(first, count), StatusIs(absl::StatusCode::kInvalidArgument))
        << first << " " << count;
  }
  EXPECT_EQ(fake_.num_calls(), num_calls) << "made before they were asked for";
  for (const auto& [first, count] :
       {Slabs(0, 0), Slabs(0, 2), Slabs(0, 1), Slabs(1, 1), Slabs(2, 0), Slabs(1, 0)}) {
    EXPECT_THAT(client.TakeDeviceSlabs(first, count), IsOkAndHolds(static_cast<size_t>(count)))
        << first << " " << count;
  }
  EXPECT_EQ(fake_.num_calls(), num_calls + 2 * 3) << "three calls make one";
  for (const int64_t kept : {int64_t{-1}, int64_t{3}, kHuge, -kHuge}) {
    EXPECT_THAT(client.KeepDeviceSlabs(kept), StatusIs(absl::StatusCode::kInvalidArgument)) << kept;
  }
  EXPECT_OK(client.KeepDeviceSlabs(2));
  EXPECT_OK(client.KeepDeviceSlabs(1));
  EXPECT_THAT(client.TakeDeviceSlabs(2, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(client.TakeDeviceSlabs(1, 1), IsOkAndHolds(1u));
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
  ASSERT_THAT(client.TakeDeviceSlabs(0, kCapacity / kSlab), IsOkAndHolds(8u));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease({{3 * kSlab, 0, 0}}, {{3 * kSlab, 0, 0}}));
  while (lease.segment().epoch.load() == 0) {
  }
  const BudgetTarget target = ReadBudgetTarget(lease.segment());
  EXPECT_EQ(target.device_bytes, kCapacity - 3 * kSlab);
  for (const int64_t bytes : {target.device_bytes + 1, kHuge, int64_t{-1}}) {
    EXPECT_THAT(client.AckEpoch(target.epoch, bytes), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  // It has more than it says.
  EXPECT_THAT(client.AckEpoch(target.epoch, target.device_bytes),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(client.KeepDeviceSlabs(6));
  EXPECT_THAT(client.AckEpoch(target.epoch, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(client.KeepDeviceSlabs(5));
  // What the target has room for, though more is granted until it is acknowledged.
  EXPECT_THAT(client.TakeDeviceSlabs(5, 1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(client.TakeDeviceSlabs(2, 6), IsOkAndHolds(3u));
  EXPECT_THAT(client.TakeDeviceSlabs(5, 0), IsOkAndHolds(0u));
  EXPECT_THAT(client.TakeDeviceSlabs(2, 7), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(client.AckEpoch(target.epoch, 1));  // It may use less.
  EXPECT_THAT(client.TakeDeviceSlabs(5, 0), IsOkAndHolds(0u));
  EXPECT_THAT(client.TakeDeviceSlabs(5, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(newcomer.ReceiveLease().status());
  ASSERT_OK(newcomer.CloseSession());
  ASSERT_OK(client.CloseSession());
  ExpectAllFree();
}

// Each call of the driver is refused in turn: what was made before it is sent, and nothing is lost.
TEST_F(HostileCudaTest, AGpuThatRefusesGivesWhatItHas) {
  constexpr int64_t kSlabs = kCapacity / kSlab;
  constexpr int64_t kCallsPerSlab = 3;
  for (int64_t call = 0; call < kSlabs * kCallsPerSlab; ++call) {
    WireClient client = Connect("client");
    ASSERT_OK(client.OpenLease({{kCapacity, 0, 0}}, {{kSlab, 0, 0}}, true).status());
    fake_.FailCall(call, CUDA_ERROR_OUT_OF_MEMORY);
    const int64_t made = call / kCallsPerSlab;
    if (made == 0) {
      EXPECT_THAT(client.TakeDeviceSlabs(0, kSlabs),
                  StatusIs(absl::StatusCode::kResourceExhausted));
    } else {
      EXPECT_THAT(client.TakeDeviceSlabs(0, kSlabs), IsOkAndHolds(static_cast<size_t>(made)));
    }
    EXPECT_THAT(client.TakeDeviceSlabs(made, kSlabs - made),
                IsOkAndHolds(static_cast<size_t>(kSlabs - made)));
    ASSERT_OK(client.CloseSession());
    ExpectAllFree();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace gemini::server
