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
#include "gemini/trace_wire.h"
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
  ASSERT_OK(newcomer.SendOpenLease(Device(5 * kMiB), Device(3 * kMiB)));
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
  ASSERT_OK(first.SendOpenLease(Device(4 * kMiB), Device(2 * kMiB)));
  WaitEpoch(held, 1);
  WireClient second = Connect("second");
  ASSERT_OK(second.SendOpenLease(Device(4 * kMiB), Device(kMiB)));
  WaitEpoch(held, 2);
  // Too much for all slack: refused at once, and the others' waiting is not disturbed.
  WireClient third = Connect("third");
  EXPECT_THAT(third.OpenLease(Device(5 * kMiB), Device(5 * kMiB)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("close job 'holder'")));
  ASSERT_OK(holder.AckEpoch(2, 5 * kMiB));
  ASSERT_OK_AND_ASSIGN(const WireLease one, first.ReceiveLease());
  ASSERT_OK_AND_ASSIGN(const WireLease two, second.ReceiveLease());
  // The first wants more, but not at the cost of the second.
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

// Property: whoever comes, answers, leaves or hangs up, and in whatever order: no byte of the capacity is
// lost or given twice, and nobody has less than its floor.
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
}

}  // namespace
}  // namespace gemini::server
