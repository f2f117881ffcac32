// SPDX-License-Identifier: Apache-2.0
// Budgets that change: who gives way, who waits, and that the sums stay right.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "gemini/plan/trace_wire.h"
#include "server/embedded_server.h"
#include "tests/server/traces.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TierMap<int64_t> Device(int64_t bytes) { return {{bytes, 0, 0}}; }

class ServerLeasesTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(absl::Minutes(10)); }
  void Start(absl::Duration epoch_timeout) {
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = 8 * kMiB;
    options.capacity_bytes[Tier::kHost] = kMiB;
    options.epoch_timeout = epoch_timeout;
    server_.reset();
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
    observer_.emplace(*server_->Connect());
    ASSERT_OK(observer_->Hello("observer", wire::Role::kObserver));
  }
  WireClient Connect(absl::string_view label) {
    WireClient client(*server_->Connect());
    EXPECT_OK(client.Hello(label));
    return client;
  }
  // An answer is on its way, or there.
  static bool HasAnswer(const WireClient& client) {
    pollfd entry = {.fd = client.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  // Until the server has posted `epoch`: it does so when it handles another's request.
  static BudgetTarget WaitEpoch(const WireLease& lease, uint64_t epoch) {
    const absl::Time start = absl::Now();
    while (ReadBudgetTarget(lease.segment()).epoch < epoch &&
           absl::Now() < start + absl::Seconds(20)) {
    }
    return ReadBudgetTarget(lease.segment());
  }
  int64_t Granted(absl::string_view label) {
    const absl::StatusOr<WireReply> status = observer_->GetStatus();
    EXPECT_OK(status);
    const wire::TenantStatus* tenant = TenantOf(*status, label);
    return tenant == nullptr ? -1 : tenant->granted()->device();
  }
  static int64_t BlocksOf(const UniqueFd& fd) {
    struct stat info = {};
    EXPECT_EQ(::fstat(fd.get(), &info), 0);
    return info.st_blocks * 512;
  }

  std::unique_ptr<EmbeddedServer> server_;
  std::optional<WireClient> observer_;
};

TEST_F(ServerLeasesTest, AckBeforeReassign) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(2 * kMiB), true));
  ASSERT_OK_AND_ASSIGN(
      const MappedMemory arena,
      MappedMemory::Map(held.arena.get(), 8 * kMiB, MappedMemory::Access::kReadWrite));
  std::memset(arena.data(), 7, 8 * kMiB);
  EXPECT_EQ(ReadBudgetTarget(held.segment()), (BudgetTarget{0, 8 * kMiB}));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease(Device(3 * kMiB), Device(3 * kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 5 * kMiB}));  // As little as is needed.
  // Posted, not taken: nobody has the bytes but the holder until it says so.
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Granted("holder"), 8 * kMiB);
  EXPECT_EQ(Granted("newcomer"), -1);
  EXPECT_FALSE(HasAnswer(newcomer));
  EXPECT_EQ(BlocksOf(held.arena), 8 * kMiB);
  ASSERT_OK(holder.AckEpoch(1, 5 * kMiB));
  // What it left is the kernel's before anybody else has the budget.
  EXPECT_EQ(BlocksOf(held.arena), 5 * kMiB);
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], 3 * kMiB);
  EXPECT_EQ(Granted("holder"), 5 * kMiB);
  for (int64_t i = 0; i < 8 * kMiB; i += 4096) {
    ASSERT_EQ(static_cast<int>(arena.data()[i]), i < 5 * kMiB ? 7 : 0);
  }
  EXPECT_EQ(NumbersOf(*observer_->GetStatus(), Tier::kDevice),
            (TierNumbers{8 * kMiB, 8 * kMiB, 0, 0}));
}

TEST_F(ServerLeasesTest, OnlyTheEpochThatWasAskedForCanBeAcknowledged) {
  WireClient holder = Connect("holder");
  EXPECT_THAT(holder.AckEpoch(0, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  EXPECT_THAT(holder.AckEpoch(0, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
  WireClient first = Connect("first");
  ASSERT_OK(first.SendOpenLease(Device(2 * kMiB), Device(2 * kMiB)));
  WaitEpoch(held, 1);
  WireClient second = Connect("second");
  ASSERT_OK(second.SendOpenLease(Device(kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 5 * kMiB}));
  EXPECT_THAT(holder.AckEpoch(3, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(holder.AckEpoch(1, 6 * kMiB),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("read the target again")));
  EXPECT_THAT(holder.AckEpoch(2, 5 * kMiB + 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(holder.AckEpoch(2, -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(Granted("holder"), 8 * kMiB);
}

TEST_F(ServerLeasesTest, BothWhoWaitGetTheirFloors) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  WireClient first = Connect("first");
  ASSERT_OK(first.SendOpenLease(Device(2 * kMiB), Device(2 * kMiB)));
  WaitEpoch(held, 1);
  WireClient second = Connect("second");
  ASSERT_OK(second.SendOpenLease(Device(kMiB), Device(kMiB)));
  WaitEpoch(held, 2);
  // Too much for all slack: refused at once, and the others' waiting is not disturbed.
  WireClient third = Connect("third");
  EXPECT_THAT(third.OpenLease(Device(5 * kMiB), Device(5 * kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("close job 'holder'")));
  ASSERT_OK(holder.AckEpoch(2, 5 * kMiB));
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.ReceiveLease());
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.ReceiveLease());
  EXPECT_EQ(one.granted[Tier::kDevice], 2 * kMiB);
  EXPECT_EQ(two.granted[Tier::kDevice], kMiB);
}

TEST_F(ServerLeasesTest, AClientThatDoesNotAnswerIsNotRobbedAndIsNamed) {
  Start(absl::Milliseconds(200));
  WireClient holder = Connect("stubborn");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  WireClient newcomer = Connect("newcomer");
  EXPECT_THAT(newcomer.OpenLease(Device(4 * kMiB), Device(4 * kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 4 MiB of DEVICE, 0 B of 8 MiB free"),
                             HasSubstr("did not answer within 200ms: 'stubborn'"))));
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 8 * kMiB}));
  EXPECT_EQ(Granted("stubborn"), 8 * kMiB);
  EXPECT_THAT(holder.AckEpoch(1, 4 * kMiB), StatusIs(absl::StatusCode::kFailedPrecondition));
  // The session of the refused one goes on.
  EXPECT_OK(newcomer.OpenLease(Device(0), Device(0)));
}

TEST_F(ServerLeasesTest, WhoTakesNoEpochsIsNeverAsked) {
  WireClient holder = Connect("old");
  ASSERT_OK_AND_ASSIGN(const WireLease held, holder.OpenLease(Device(8 * kMiB), Device(0)));
  WireClient newcomer = Connect("newcomer");
  EXPECT_THAT(newcomer.OpenLease(Device(kMiB), Device(kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ReadBudgetTarget(held.segment()).epoch, 0u);
  EXPECT_EQ(held.device_arena_bytes, 8 * kMiB);
}

TEST_F(ServerLeasesTest, WhenANewcomerLeavesBeforeTheAnswerTheOthersKeepTheirs) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  {
    WireClient newcomer = Connect("newcomer");
    ASSERT_OK(newcomer.SendOpenLease(Device(4 * kMiB), Device(4 * kMiB)));
    WaitEpoch(held, 1);
  }
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 8 * kMiB}));
  EXPECT_EQ(Granted("holder"), 8 * kMiB);
}

TEST_F(ServerLeasesTest, WhenTheOneThatIsAskedLeavesTheNewcomerHasItsBytes) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease(Device(6 * kMiB), Device(4 * kMiB)));
  WaitEpoch(held, 1);
  ASSERT_OK(holder.CloseSession());
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], 6 * kMiB);
}

// It keeps its bytes until its process is dead, and can give none: another one has to.
TEST_F(ServerLeasesTest, WhenTheOneThatIsAskedHangsUpAnotherGivesWay) {
  WireClient large = Connect("large");
  ASSERT_OK_AND_ASSIGN(const WireLease first,
                       large.OpenLease(Device(5 * kMiB), Device(kMiB), true));
  WireClient small = Connect("small");
  ASSERT_OK_AND_ASSIGN(const WireLease second,
                       small.OpenLease(Device(3 * kMiB), Device(kMiB), true));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease(Device(2 * kMiB), Device(2 * kMiB)));
  EXPECT_EQ(WaitEpoch(first, 1), (BudgetTarget{1, 3 * kMiB}));
  EXPECT_EQ(ReadBudgetTarget(second.segment()).epoch, 0u);
  large.HangUp();
  EXPECT_EQ(WaitEpoch(second, 1), (BudgetTarget{1, kMiB}));
  ASSERT_OK(small.AckEpoch(1, kMiB));
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], 2 * kMiB);
}

TEST_F(ServerLeasesTest, WhenAJobEndsTheOthersGrowBackToWhatTheyWant) {
  WireClient guest = Connect("guest");
  ASSERT_OK(guest.OpenLease(Device(3 * kMiB), Device(3 * kMiB)));
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(7 * kMiB), Device(kMiB), true));
  EXPECT_EQ(held.granted[Tier::kDevice], 5 * kMiB);
  EXPECT_EQ(held.device_arena_bytes, 7 * kMiB);  // Addresses for all that it wants.
  EXPECT_EQ(ReadBudgetTarget(held.segment()), (BudgetTarget{0, 5 * kMiB}));
  ASSERT_OK(guest.CloseSession());
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 7 * kMiB}));
  EXPECT_EQ(Granted("holder"), 7 * kMiB);
  EXPECT_EQ(NumbersOf(*observer_->GetStatus(), Tier::kDevice).free, kMiB);
}

TEST_F(ServerLeasesTest, APlansFloorIsWhatALeaseMayShrinkTo) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(8 * kMiB), true));
  WireClient newcomer = Connect("newcomer");
  EXPECT_THAT(newcomer.OpenLease(Device(kMiB), Device(kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const auto plan = [&](Trace trace, int64_t non_model_bytes) {
    trace.operators[0].non_model_peak_bytes = non_model_bytes;
    ASSERT_OK(holder.WriteTrace(EncodeTrace(trace)));
    ASSERT_OK(holder.MakePlan({.device_bytes = 8 * kMiB, .chunk_bytes = kMiB}));
  };
  plan(StepTrace(4, kMiB), 2 * kMiB);
  plan(StepTrace(4, kMiB, "eval"), kMiB);  // The largest of both counts.
  ASSERT_OK_AND_ASSIGN(const WireReply status, observer_->GetStatus());
  EXPECT_EQ(TenantOf(status, "holder")->floor()->device(), 3 * kMiB);
  ASSERT_OK(newcomer.SendOpenLease(Device(5 * kMiB), Device(5 * kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 3 * kMiB}));
  ASSERT_OK(holder.AckEpoch(1, 0));
  EXPECT_OK(newcomer.ReceiveLease());
}

// A third of the 8 MiB, in whole pages.
constexpr int64_t kThird = 8 * kMiB / 3 / 4096 * 4096;

TEST_F(ServerLeasesTest, ANewcomerGetsAFairPartOfWhatOthersHaveAboveTheirFloors) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 4 * kMiB}));
  ASSERT_OK(holder.AckEpoch(1, 4 * kMiB));
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], 4 * kMiB);
  EXPECT_EQ(got.device_arena_bytes, 4 * kMiB);  // It takes no epochs, so it will not grow.
}

TEST_F(ServerLeasesTest, WhoWantsLessThanAFairPartGetsWhatItWants) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease(Device(3 * kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 5 * kMiB}));
}

TEST_F(ServerLeasesTest, WhatOthersNeedIsNotAskedForAndNotWaitedFor) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(5 * kMiB), true));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK(newcomer.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 5 * kMiB}));  // Its floor, not 4 MiB.
  ASSERT_OK(holder.AckEpoch(1, 5 * kMiB));
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], 3 * kMiB);
  // And not even a floor: refused at once.
  WireClient third = Connect("third");
  EXPECT_THAT(third.OpenLease(Device(8 * kMiB), Device(kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 1 MiB of DEVICE, 0 B of 8 MiB free"),
                             HasSubstr("close job 'holder'"))));
  EXPECT_EQ(ReadBudgetTarget(held.segment()).epoch, 1u);
}

TEST_F(ServerLeasesTest, BesideOneAtItsFloorANewcomerHasTheRestAtOnce) {
  WireClient holder = Connect("holder");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(6 * kMiB), Device(6 * kMiB), true));
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.OpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_EQ(got.granted[Tier::kDevice], 2 * kMiB);
  EXPECT_EQ(ReadBudgetTarget(held.segment()).epoch, 0u);
}

TEST_F(ServerLeasesTest, BesideASilentOneANewcomerHasWhatIsFreeAfterTheTimeout) {
  Start(absl::Milliseconds(200));
  WireClient holder = Connect("silent");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(6 * kMiB), Device(kMiB), true));
  WireClient larger = Connect("larger");
  EXPECT_THAT(larger.OpenLease(Device(8 * kMiB), Device(3 * kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 3 MiB of DEVICE, 2 MiB of 8 MiB free"),
                             HasSubstr("did not answer within 200ms: 'silent'"))));
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 6 * kMiB}));
  WireClient newcomer = Connect("newcomer");
  const absl::Time start = absl::Now();
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.OpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));
  EXPECT_EQ(got.granted[Tier::kDevice], 2 * kMiB);
  // It was asked for a half, and keeps what it has.
  EXPECT_EQ(WaitEpoch(held, 4), (BudgetTarget{4, 6 * kMiB}));
  EXPECT_EQ(Granted("silent"), 6 * kMiB);
}

TEST_F(ServerLeasesTest, AfterTheTimeoutTheFloorsOfOthersWhoWaitAreLeftToThem) {
  Start(absl::Seconds(1));
  WireClient holder = Connect("silent"), first = Connect("first"), second = Connect("second");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(6 * kMiB), Device(kMiB), true));
  ASSERT_OK(first.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  ASSERT_OK(second.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.ReceiveLease());
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.ReceiveLease());
  EXPECT_EQ(one.granted[Tier::kDevice], kMiB);
  EXPECT_EQ(two.granted[Tier::kDevice], kMiB);
}

TEST_F(ServerLeasesTest, ThreeJobsHaveAThirdEachAndGrowWhenOneEnds) {
  WireClient first = Connect("first"), second = Connect("second"), third = Connect("third");
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  ASSERT_OK(second.SendOpenLease(Device(8 * kMiB), Device(kMiB), true));
  WaitEpoch(one, 1);
  ASSERT_OK(first.AckEpoch(1, 0));
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.ReceiveLease());
  EXPECT_EQ(two.granted[Tier::kDevice], 4 * kMiB);
  EXPECT_EQ(two.device_arena_bytes, 8 * kMiB);
  ASSERT_OK(third.SendOpenLease(Device(8 * kMiB), Device(kMiB), true));
  // Who has more than its part gives way, not the one with the most above its floor alone.
  const BudgetTarget first_target = WaitEpoch(one, 2);
  const BudgetTarget second_target = WaitEpoch(two, 1);
  EXPECT_EQ(first_target.device_bytes + second_target.device_bytes, 8 * kMiB - kThird);
  EXPECT_GE(first_target.device_bytes, kThird);
  EXPECT_GE(second_target.device_bytes, kThird);
  ASSERT_OK(first.AckEpoch(2, 0));
  EXPECT_FALSE(HasAnswer(third));
  ASSERT_OK(second.AckEpoch(1, 0));
  ASSERT_OK_AND_ASSIGN(const WireLease three, third.ReceiveLease());
  EXPECT_EQ(three.granted[Tier::kDevice], kThird);
  // Nobody grows at the cost of another, nor is asked again.
  EXPECT_EQ(NumbersOf(*observer_->GetStatus(), Tier::kDevice).free, 0);
  EXPECT_EQ(ReadBudgetTarget(one.segment()), first_target);
  EXPECT_EQ(ReadBudgetTarget(two.segment()), second_target);
  ASSERT_OK(first.CloseSession());
  WaitEpoch(three, 1);
  EXPECT_EQ(Granted("second") + Granted("third"), 8 * kMiB);
  ASSERT_OK(second.CloseSession());
  EXPECT_EQ(WaitEpoch(three, 2), (BudgetTarget{2, 8 * kMiB}));
  EXPECT_EQ(Granted("third"), 8 * kMiB);
}

TEST_F(ServerLeasesTest, WhoHasNoMoreThanAFairPartIsNotAskedForAnothersWish) {
  WireClient large = Connect("large"), small = Connect("small"), newcomer = Connect("newcomer");
  ASSERT_OK_AND_ASSIGN(const WireLease first,
                       large.OpenLease(Device(6 * kMiB), Device(5 * kMiB), true));
  ASSERT_OK_AND_ASSIGN(const WireLease second, small.OpenLease(Device(2 * kMiB), Device(0), true));
  // The one with more above its floor is the small one, but it has less than a third.
  ASSERT_OK(newcomer.SendOpenLease(Device(kMiB), Device(kMiB / 2)));
  EXPECT_EQ(WaitEpoch(first, 1), (BudgetTarget{1, 5 * kMiB}));
  EXPECT_EQ(ReadBudgetTarget(second.segment()).epoch, 0u);
}

TEST_F(ServerLeasesTest, TwoNewcomersAtOnceHaveEqualParts) {
  WireClient holder = Connect("holder"), first = Connect("first"), second = Connect("second");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  ASSERT_OK(first.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 4 * kMiB}));
  ASSERT_OK(second.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 8 * kMiB - 2 * kThird}));
  ASSERT_OK(holder.AckEpoch(2, 0));
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.ReceiveLease());
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.ReceiveLease());
  EXPECT_EQ(one.granted[Tier::kDevice], kThird);
  EXPECT_EQ(two.granted[Tier::kDevice], kThird);
}

TEST_F(ServerLeasesTest, NobodysWishComesBeforeTheFloorOfAnotherWhoWaits) {
  WireClient holder = Connect("holder"), first = Connect("first"), second = Connect("second");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(2 * kMiB), true));
  ASSERT_OK(first.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  EXPECT_EQ(WaitEpoch(held, 1), (BudgetTarget{1, 4 * kMiB}));
  ASSERT_OK(second.SendOpenLease(Device(4 * kMiB), Device(4 * kMiB)));
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 2 * kMiB}));
  ASSERT_OK(holder.AckEpoch(2, 0));
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.ReceiveLease());
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.ReceiveLease());
  EXPECT_EQ(one.granted[Tier::kDevice], 2 * kMiB);  // Not a third.
  EXPECT_EQ(two.granted[Tier::kDevice], 4 * kMiB);
}

TEST_F(ServerLeasesTest, WhatWasVacatedForANewcomerThatHangsUpGoesBack) {
  WireClient first = Connect("first"), second = Connect("second"), newcomer = Connect("newcomer");
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.OpenLease(Device(4 * kMiB), Device(kMiB), true));
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.OpenLease(Device(4 * kMiB), Device(kMiB), true));
  ASSERT_OK(newcomer.SendOpenLease(Device(8 * kMiB), Device(kMiB)));
  WaitEpoch(one, 1);
  WaitEpoch(two, 1);
  ASSERT_OK(first.AckEpoch(1, 0));
  EXPECT_LT(Granted("first"), 4 * kMiB);
  newcomer.HangUp();
  EXPECT_EQ(WaitEpoch(one, 2), (BudgetTarget{2, 4 * kMiB}));
  EXPECT_EQ(WaitEpoch(two, 2), (BudgetTarget{2, 4 * kMiB}));
  EXPECT_EQ(Granted("first"), 4 * kMiB);
  EXPECT_EQ(Granted("second"), 4 * kMiB);
}

TEST_F(ServerLeasesTest, WhatWasVacatedForANewcomerThatHangsUpServesTheNextOne) {
  WireClient first = Connect("first"), second = Connect("second");
  WireClient leaving = Connect("leaving"), newcomer = Connect("newcomer");
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.OpenLease(Device(4 * kMiB), Device(kMiB), true));
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.OpenLease(Device(4 * kMiB), Device(kMiB), true));
  ASSERT_OK(leaving.SendOpenLease(Device(4 * kMiB), Device(4 * kMiB)));
  WaitEpoch(one, 1);
  WaitEpoch(two, 1);
  ASSERT_OK(newcomer.SendOpenLease(Device(kMiB), Device(kMiB)));
  WaitEpoch(two, 2);
  const BudgetTarget vacated = ReadBudgetTarget(one.segment());
  ASSERT_OK(first.AckEpoch(vacated.epoch, 0));
  EXPECT_FALSE(HasAnswer(newcomer));
  leaving.HangUp();  // The second holder never answers.
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], kMiB);
  EXPECT_EQ(Granted("first"), 3 * kMiB);
  EXPECT_EQ(Granted("second"), 4 * kMiB);
}

TEST_F(ServerLeasesTest, WhatTurnsOutNotToBeNeededGoesBackToWhoGaveWay) {
  WireClient holder = Connect("holder"), leaving = Connect("leaving");
  WireClient newcomer = Connect("newcomer");
  ASSERT_OK_AND_ASSIGN(const WireLease held,
                       holder.OpenLease(Device(8 * kMiB), Device(kMiB), true));
  ASSERT_OK(leaving.SendOpenLease(Device(4 * kMiB), Device(4 * kMiB)));
  WaitEpoch(held, 1);
  ASSERT_OK(newcomer.SendOpenLease(Device(8 * kMiB), Device(kMiB), true));
  EXPECT_EQ(WaitEpoch(held, 2), (BudgetTarget{2, 4 * kMiB - kThird}));
  leaving.HangUp();
  ASSERT_OK(observer_->GetStatus());  // By now the server has seen it.
  ASSERT_OK(holder.AckEpoch(2, 0));
  ASSERT_OK_AND_ASSIGN(const WireLease got, newcomer.ReceiveLease());
  EXPECT_EQ(got.granted[Tier::kDevice], 4 * kMiB);
  EXPECT_EQ(WaitEpoch(held, 3), (BudgetTarget{3, 4 * kMiB}));
}

// 64 phases are kept by name; the most that any other needs stays, whatever is planned anew.
TEST_F(ServerLeasesTest, TheFloorOfPhasesBeyondTheListedOnesStays) {
  WireClient holder = Connect("holder");
  ASSERT_OK(holder.OpenLease(Device(8 * kMiB), Device(8 * kMiB), true));
  const auto plan = [&](const std::string& phase, int64_t non_model_bytes) {
    Trace trace = StepTrace(1, kMiB, phase);
    trace.operators[0].non_model_peak_bytes = non_model_bytes;
    ASSERT_OK(holder.WriteTrace(EncodeTrace(trace)));
    ASSERT_OK(holder.MakePlan({.device_bytes = 8 * kMiB, .chunk_bytes = kMiB}));
  };
  for (int i = 0; i < 64; ++i) plan(absl::StrCat("phase", 100 + i), 0);
  plan("one more", 2 * kMiB);
  plan("phase100", 0);
  EXPECT_EQ(TenantOf(*observer_->GetStatus(), "holder")->floor()->device(), 3 * kMiB);
}

// Property: whoever comes, answers, leaves or hangs up, and in whatever order: no byte of the
// capacity is lost or given twice, and nobody has less than its floor.
TEST_F(ServerLeasesTest, SumOfBudgets) {
  struct Job {
    std::optional<WireClient> client;
    std::optional<WireLease> lease;
    int64_t floor_bytes = 0;
  };
  std::mt19937_64 random(/*seed=*/41);
  std::map<std::string, Job> jobs;
  int next_name = 0, granted = 0, acknowledged = 0;
  // Which answers are there when is a matter of time, so as many steps as bring enough of them.
  const auto has_enough = [&] { return granted > 100 && acknowledged > 20; };
  for (int step = 0; step < 1500 || (step < 60'000 && !has_enough()); ++step) {
    auto chosen = jobs.begin();
    if (!jobs.empty()) std::advance(chosen, random() % jobs.size());
    const uint64_t action = random() % 8;
    if (jobs.size() < 5 && action < 3) {
      const std::string name = absl::StrCat("job", next_name++);
      Job& job = jobs[name];
      job.client.emplace(Connect(name));
      job.floor_bytes = static_cast<int64_t>(random() % 4) * kMiB;
      const int64_t want = job.floor_bytes + static_cast<int64_t>(random() % 6) * kMiB;
      ASSERT_OK(
          job.client->SendOpenLease(Device(want), Device(job.floor_bytes), random() % 4 != 0));
    } else if (!jobs.empty() && action < 6) {
      Job& job = chosen->second;
      if (!job.lease.has_value() && HasAnswer(*job.client)) {
        absl::StatusOr<WireLease> lease = job.client->ReceiveLease();
        if (!lease.ok()) {
          ASSERT_THAT(lease, StatusIs(absl::StatusCode::kResourceExhausted));
          jobs.erase(chosen);
        } else {
          job.lease = *std::move(lease);
          ++granted;
        }
      } else if (job.lease.has_value()) {
        const BudgetTarget target = ReadBudgetTarget(job.lease->segment());
        ASSERT_GE(target.device_bytes, job.floor_bytes);
        acknowledged += job.client->AckEpoch(target.epoch, target.device_bytes).ok() ? 1 : 0;
      }
    } else if (!jobs.empty() && chosen->second.lease.has_value()) {
      ASSERT_OK(chosen->second.client->CloseSession());
      jobs.erase(chosen);
    } else if (!jobs.empty() && random() % 8 == 0 && !HasAnswer(*chosen->second.client)) {
      jobs.erase(chosen);  // Hangs up while it waits.
    }
    ASSERT_OK_AND_ASSIGN(const WireReply status, observer_->GetStatus());
    const TierNumbers device = NumbersOf(status, Tier::kDevice);
    ASSERT_EQ(device.capacity, device.leased + device.reclaiming + device.free) << "step " << step;
    ASSERT_GE(device.free, 0);
    int64_t sum = 0;
    for (const wire::TenantStatus* tenant : *status.message().body_as_StatusReply()->tenants()) {
      sum += tenant->granted()->device();
      ASSERT_GE(tenant->granted()->device(), tenant->floor()->device());
      ASSERT_LE(tenant->device_target(), tenant->granted()->device());
    }
    // A lease that is on its way back is shown until its bytes are free.
    ASSERT_GE(sum, device.leased) << "step " << step;
    ASSERT_LE(sum, device.leased + device.reclaiming) << "step " << step;
  }
  EXPECT_TRUE(has_enough()) << granted << " leases granted, " << acknowledged << " acknowledged";
  // And nobody waits for long once everybody answers.
  const absl::Time start = absl::Now();
  for (bool somebody_waits = true; somebody_waits;) {
    ASSERT_LT(absl::Now() - start, absl::Seconds(20));
    somebody_waits = false;
    for (auto& [name, job] : jobs) {
      if (job.lease.has_value()) {
        const BudgetTarget target = ReadBudgetTarget(job.lease->segment());
        job.client->AckEpoch(target.epoch, target.device_bytes).IgnoreError();
      } else if (job.client.has_value()) {
        somebody_waits = true;
        if (!HasAnswer(*job.client)) continue;
        absl::StatusOr<WireLease> lease = job.client->ReceiveLease();
        if (lease.ok()) job.lease = *std::move(lease);
        if (!lease.ok()) job.client.reset();
      }
    }
  }
}

}  // namespace
}  // namespace gemini::server
