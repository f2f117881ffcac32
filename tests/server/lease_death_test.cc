// SPDX-License-Identifier: Apache-2.0
// What becomes of a lease when its client dies, against the real daemon and real processes.
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "server/host_memory.h"
#include "server/sealed_memfd.h"
#include "tests/server/daemon_process.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(300);  // Only a machine that swaps gets there.

struct DeathTimes {
  absl::Duration fenced;  // After the process was seen dead.
  absl::Duration free;
  bool seen_reclaiming = false;
};

class LeaseDeathTest : public ::testing::Test {
 protected:
  void StartDaemon(int64_t host_mib) {
    capacity_ = host_mib * kMiB;
    std::string nvme = ::testing::TempDir() + "/nvme-XXXXXX";
    nvme_ = ::mkdtemp(nvme.data());
    auto daemon = DaemonProcess::Start(
        GEMINI_GEMINID_PATH,
        {"--device-memory", "16MiB", "--host-memory", absl::StrCat(host_mib, "MiB"), "--nvme",
         absl::StrCat(nvme_, ":64MiB"), "--log-level", "warn", "--drain-timeout", "1"});
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
    auto observer = daemon_->Connect("observer", wire::Role::kObserver);
    ASSERT_OK(observer);
    observer_.emplace(*std::move(observer));
  }
  void TearDown() override {
    daemon_.reset();
    if (!nvme_.empty()) std::filesystem::remove_all(nvme_);
  }

  absl::StatusOr<ChildProcess> StartHolder(const std::string& label, int64_t host_mib,
                                           int64_t nvme_mib, const std::string& mode) {
    return ChildProcess::Start({GEMINI_LEASE_HOLDER_PATH, daemon_->socket_path(), label,
                                absl::StrCat(host_mib), absl::StrCat(nvme_mib), mode});
  }
  // The pid in "ready PID".
  static pid_t WaitReady(ChildProcess& holder) {
    const std::string line = holder.ReadLine(kLong).value_or("nothing");
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(absl::StripPrefix(line, "ready "), &pid)) << line;
    return pid;
  }

  // Follows the status from the moment that `holder` is dead until its `host_bytes` are free again.
  DeathTimes FollowDeath(const ChildProcess& holder, const std::string& label, int64_t host_bytes,
                         int64_t leased_by_others) {
    DeathTimes times;
    absl::StatusOr<WireClient> heir = daemon_->Connect("heir");
    EXPECT_OK(heir);
    EXPECT_TRUE(holder.WaitDead(kLong));
    const absl::Time dead = absl::Now();
    bool fenced = false;
    while (absl::Now() < dead + kLong) {
      const absl::StatusOr<WireReply> status = observer_->GetStatus();
      const absl::Duration since = absl::Now() - dead;
      EXPECT_OK(status);
      if (!status.ok() || !heir.ok()) return times;
      const wire::TenantStatus* tenant = TenantOf(*status, label);
      const TierNumbers host = NumbersOf(*status, Tier::kHost);
      EXPECT_EQ(host.capacity, host.leased + host.reclaiming + host.free);
      if (!fenced && (tenant == nullptr || tenant->fenced())) {
        fenced = true;
        times.fenced = since;
      }
      times.seen_reclaiming = times.seen_reclaiming || host.reclaiming > 0;
      if (host.leased > leased_by_others) continue;
      // Death is confirmed. The heir waits inside the server: asking again and again would take the
      // processor from the worker that gives the pages back.
      EXPECT_OK(heir->OpenLease({{0, host_bytes, 0}}, {{0, host_bytes, 0}}));
      times.free = absl::Now() - dead;
      const absl::StatusOr<WireReply> after = observer_->GetStatus();
      EXPECT_OK(after);
      if (!after.ok()) return times;
      EXPECT_EQ(TenantOf(*after, label), nullptr);
      EXPECT_EQ(NumbersOf(*after, Tier::kHost).reclaiming, 0);
      EXPECT_OK(heir->CloseSession());
      return times;
    }
    ADD_FAILURE() << "never free";
    return times;
  }

  // The promise is 200 ms a GiB. On a machine that is busy with other work the kernel itself may be
  // slower: then half as much again as it takes here and now.
  static absl::Duration AllowedPerGiB() {
    constexpr int64_t kBytes = 512 * kMiB;
    absl::StatusOr<UniqueFd> fd =
        MakeSealedMemfd("gemini-baseline", kBytes, MemfdPages::kAllocated);
    EXPECT_OK(fd);
    if (!fd.ok()) return absl::ZeroDuration();
    const absl::Time start = absl::Now();
    DestroyMemfd(*std::move(fd), kBytes);
    const absl::Duration measured = (absl::Now() - start) * (static_cast<double>(kGiB) / kBytes);
    std::printf("the kernel takes %s a GiB here and now\n", absl::FormatDuration(measured).c_str());
    return std::max(absl::Milliseconds(200), measured * 1.5);
  }

  int64_t capacity_ = 0;
  std::string nvme_;
  std::optional<DaemonProcess> daemon_;
  std::optional<WireClient> observer_;
};

TEST_F(LeaseDeathTest, ABusyClientKilledAtRandomMomentsGivesAllBackAndNobodyNotices) {
  StartDaemon(256);
  ASSERT_OK_AND_ASSIGN(WireClient other, daemon_->Connect("other"));
  ASSERT_OK(other.OpenLease({{0, 32 * kMiB, 8 * kMiB}}, {{0, 32 * kMiB, 8 * kMiB}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space, other.OpenSpace({.name = "other",
                                                         .chunk_bytes = kMiB,
                                                         .num_bundles = 1,
                                                         .host_slots = 32,
                                                         .nvme_slots = 8}));
  ASSERT_OK_AND_ASSIGN(MappedMemory slab, MappedMemory::Map(space.slabs[0].get(), 32 * kMiB,
                                                            MappedMemory::Access::kReadWrite));
  const auto seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  std::vector<absl::Duration> fenced;
  std::vector<absl::Duration> freed;
  for (int round = 0; round < 20; ++round) {
    ASSERT_OK_AND_ASSIGN(ChildProcess holder, StartHolder("victim", 128, 16, "busy"));
    WaitReady(holder);
    // A random moment of its work: no line comes any more.
    (void)holder.ReadLine(absl::Microseconds(random() % 20'000));
    holder.Signal(SIGKILL);
    const DeathTimes times = FollowDeath(holder, "victim", 132 * kMiB, 32 * kMiB);
    fenced.push_back(times.fenced);
    freed.push_back(times.free);
    // The other client's memory and I/O go on.
    std::memset(slab.data(), round + 1, kMiB);
    ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 3)), 0);
    ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 5, 3)), 0);
    ASSERT_EQ(static_cast<int>(slab.data()[5 * kMiB + 12345]), round + 1);
    ASSERT_EQ(space.server().generation.load(), space.generation);
  }
  std::sort(fenced.begin(), fenced.end());
  std::sort(freed.begin(), freed.end());
  std::printf(
      "fenced after the process was seen dead: median %s, slowest %s; 132 MiB free: %s, %s\n",
      absl::FormatDuration(fenced[10]).c_str(), absl::FormatDuration(fenced[19]).c_str(),
      absl::FormatDuration(freed[10]).c_str(), absl::FormatDuration(freed[19]).c_str());
  // The promise is 10 ms. On a machine busy with other work the status call itself waits for a
  // processor: a quarter may be slower than that, and the slowest is printed.
  EXPECT_LE(fenced[14], absl::Milliseconds(10));
  EXPECT_LE(freed[14], absl::Milliseconds(100) + AllowedPerGiB() * 132 / 1024);
  EXPECT_OK(other.CloseSession());
}

TEST_F(LeaseDeathTest, FenceThenReuseThoughAForkedChildHoldsTheSocketAndTheSlabs) {
  StartDaemon(256);
  ASSERT_OK_AND_ASSIGN(ChildProcess holder, StartHolder("victim", 200, 0, "fork"));
  const pid_t child = WaitReady(holder);
  holder.Signal(SIGKILL);
  FollowDeath(holder, "victim", 200 * kMiB, 0);
  // The pages are the machine's again, though the child still has descriptors to the slabs.
  int slabs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", child, "/fd"))) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.find("gemini-slab") == std::string::npos) continue;
    struct stat info;
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_blocks, 0) << target;
    ++slabs;
  }
  EXPECT_EQ(slabs, 1);
  ASSERT_OK_AND_ASSIGN(WireClient next, daemon_->Connect("next"));
  EXPECT_OK(next.OpenLease({{0, capacity_, 0}}, {{0, capacity_, 0}}));
  ::kill(child, SIGKILL);
}

TEST_F(LeaseDeathTest, FenceThenReuseNotWhileAStoppedClientLives) {
  StartDaemon(256);
  ASSERT_OK_AND_ASSIGN(ChildProcess holder, StartHolder("sleeper", 200, 0, "hold"));
  WaitReady(holder);
  holder.Signal(SIGSTOP);
  ASSERT_OK_AND_ASSIGN(WireClient next, daemon_->Connect("next"));
  holder.WaitStopped();
  EXPECT_THAT(next.OpenLease({{0, 100 * kMiB, 0}}, {{0, 100 * kMiB, 0}}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 100 MiB of HOST, 56 MiB of 256 MiB free"),
                             HasSubstr("close job 'sleeper'"), HasSubstr("stopped"))));
  ASSERT_OK_AND_ASSIGN(WireReply status, observer_->GetStatus());
  EXPECT_FALSE(TenantOf(status, "sleeper")->fenced());
  EXPECT_EQ(TenantOf(status, "sleeper")->granted()->host(), 200 * kMiB);
  holder.Signal(SIGKILL);
  FollowDeath(holder, "sleeper", 200 * kMiB, 0);
  EXPECT_OK(next.OpenLease({{0, 100 * kMiB, 0}}, {{0, 100 * kMiB, 0}}));
}

TEST_F(LeaseDeathTest, FenceThenReuseNotWhileAClientThatHungUpLives) {
  StartDaemon(256);
  // This process is the client: it lives on after the hang-up.
  ASSERT_OK_AND_ASSIGN(WireClient client, daemon_->Connect("mute"));
  ASSERT_OK(client.OpenLease({{0, 200 * kMiB, 0}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 1, .nvme_slots = 0}));
  client.HangUp();
  const absl::Time start = absl::Now();
  while (space.server().generation.load() == space.generation && absl::Now() < start + kLong) {
  }
  EXPECT_EQ(space.server().generation.load(), space.generation + 1);
  ASSERT_OK_AND_ASSIGN(WireReply status, observer_->GetStatus());
  EXPECT_TRUE(TenantOf(status, "mute")->fenced());
  EXPECT_EQ(NumbersOf(status, Tier::kHost).leased, 200 * kMiB);
  EXPECT_EQ(NumbersOf(status, Tier::kHost).reclaiming, 0);
  ASSERT_OK_AND_ASSIGN(WireClient next, daemon_->Connect("next"));
  EXPECT_THAT(next.OpenLease({{0, 100 * kMiB, 0}}, {{0, 100 * kMiB, 0}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("'mute'")));
}

TEST_F(LeaseDeathTest, ATrainerStartedAgainAtOnceWaitsForItsBytesInsteadOfBeingRefused) {
  StartDaemon(1024);
  ASSERT_OK_AND_ASSIGN(ChildProcess holder, StartHolder("job", 1024, 0, "hold"));
  WaitReady(holder);
  ASSERT_OK_AND_ASSIGN(WireClient next, daemon_->Connect("job"));
  holder.Signal(SIGKILL);
  // Wait until the server knows, not until the bytes are free.
  const absl::Time start = absl::Now();
  while (absl::Now() < start + kLong) {
    ASSERT_OK_AND_ASSIGN(WireReply status, observer_->GetStatus());
    if (NumbersOf(status, Tier::kHost).leased == 0) break;
  }
  EXPECT_OK(next.OpenLease({{0, kGiB, 0}}, {{0, kGiB, 0}}));
}

TEST_F(LeaseDeathTest, ALeaseOf8GiBIsFreeWithin100MsAnd200MsAGiB) {
  ASSERT_OK_AND_ASSIGN(const int64_t available, AvailableHostMemory());
  if (available < 11 * kGiB) {
    GTEST_SKIP() << "needs 11 GiB of free memory, " << FormatByteSize(available) << " available";
  }
  StartDaemon(8192);
  ASSERT_OK_AND_ASSIGN(ChildProcess holder, StartHolder("big", 8192, 0, "hold"));
  WaitReady(holder);
  holder.Signal(SIGKILL);
  const DeathTimes times = FollowDeath(holder, "big", 8 * kGiB, 0);
  std::printf("8 GiB: fenced after %s, free after %s\n", absl::FormatDuration(times.fenced).c_str(),
              absl::FormatDuration(times.free).c_str());
  EXPECT_TRUE(times.seen_reclaiming);
  EXPECT_LE(times.free, absl::Milliseconds(100) + 8 * AllowedPerGiB());
}

}  // namespace
}  // namespace gemini::server
