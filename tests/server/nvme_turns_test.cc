// SPDX-License-Identifier: Apache-2.0
// What one tenant's queue for NVMe costs the others, with the real daemon: another one's write
// beside it, and its own lease after its death. One has 100 writes of 64 MiB queued, all the time.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "tests/server/daemon_process.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

#ifdef GEMINI_TIMES_SAY_NOTHING
constexpr bool kTimesCount = false;
#else
constexpr bool kTimesCount = true;
#endif
constexpr int64_t kLeaseMib = 512;
constexpr int kWrites = 100;
// Under way at any time, in pieces of 4 MiB: what a write may have to wait for, here or in the
// disk. The bar is for a disk that takes them in half of it.
constexpr int64_t kUnderWayBytes = 32 * kMiB;
constexpr absl::Duration kWaitBar = absl::Milliseconds(20);
// 100 ms and 200 ms a GiB of the lease.
constexpr absl::Duration kFreeBar = absl::Milliseconds(200);
// Others may use this disk, too: one good try shows what the server does.
constexpr int kTries = 5;
constexpr absl::Duration kLong = absl::Seconds(60);

class NvmeTurnsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string nvme = ::testing::TempDir() + "/nvme-XXXXXX";
    nvme_ = ::mkdtemp(nvme.data());
    auto daemon = DaemonProcess::Start(
        GEMINI_GEMINID_PATH,
        {"--device-memory", "1MiB", "--host-memory", "1GiB", "--nvme", absl::StrCat(nvme_, ":1GiB"),
         "--nvme-io", GetParam(), "--log-level", "warn", "--drain-timeout", "1"});
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
  }
  void TearDown() override {
    daemon_.reset();
    if (!nvme_.empty()) std::filesystem::remove_all(nvme_);
  }

  ChildProcess StartFlood() const {
    auto flood = ChildProcess::Start({GEMINI_LEASE_HOLDER_PATH, daemon_->socket_path(), "flood",
                                      absl::StrCat(kLeaseMib), absl::StrCat(kLeaseMib), "flood"});
    EXPECT_OK(flood);
    EXPECT_THAT(flood->ReadLine(kLong), IsOkAndHolds(::testing::HasSubstr("ready")));
    return *std::move(flood);
  }

  // How long each of `count` writes took, sorted.
  static std::vector<absl::Duration> Write(WireSpace& space, int count = kWrites) {
    std::vector<absl::Duration> times;
    for (int i = 0; i < count; ++i) {
      const absl::Time start = absl::Now();
      EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, i % 2)), 0);
      times.push_back(absl::Now() - start);
    }
    std::sort(times.begin(), times.end());
    return times;
  }
  static void Show(const char* what, const std::vector<absl::Duration>& times) {
    std::printf("%s, %s: p50 %s, p99 %s\n", GetParam().c_str(), what,
                absl::FormatDuration(times[kWrites / 2 - 1]).c_str(),
                absl::FormatDuration(times[kWrites - 2]).c_str());
  }

  std::string nvme_;
  std::optional<DaemonProcess> daemon_;
};

TEST_P(NvmeTurnsTest, AWriteWaitsForTheOthersPiecesUnderWayAndNotForTheirQueue) {
  constexpr int64_t kChunk = 64 * kKiB;
  ASSERT_OK_AND_ASSIGN(WireClient client, daemon_->Connect("modest"));
  const TierMap<int64_t> lease = {{0, kUnderWayBytes + kChunk, 2 * (kUnderWayBytes + kChunk)}};
  ASSERT_OK(client.OpenLease(lease, lease));
  ASSERT_OK_AND_ASSIGN(
      WireSpace space,
      client.OpenSpace({.name = "s", .chunk_bytes = kChunk, .host_slots = 1, .nvme_slots = 2}));
  ASSERT_OK_AND_ASSIGN(
      WireSpace large,
      client.OpenSpace(
          {.name = "l", .chunk_bytes = kUnderWayBytes, .host_slots = 1, .nvme_slots = 2}));
  absl::Duration more, bar;
  for (int i = 0; i < kTries; ++i) {
    const std::vector<absl::Duration> alone = Write(space);
    const ChildProcess flood = StartFlood();
    const std::vector<absl::Duration> beside = Write(space);
    Show("64 KiB alone", alone);
    Show("64 KiB beside 100 queued writes of 64 MiB", beside);
    more = beside[kWrites - 2] - alone[kWrites - 2];
    flood.Signal(SIGKILL);
    ASSERT_TRUE(flood.WaitDead(kLong));
    // In the same try, for a disk's speed may change with what it was given before.
    const absl::Duration under_way = Write(large, 9)[4];
    bar = std::max(kWaitBar, 2 * under_way);
    std::printf("%s, the disk takes %s for 32 MiB alone\n", GetParam().c_str(),
                absl::FormatDuration(under_way).c_str());
    if (more <= bar) break;
  }
  if (kTimesCount) {
    EXPECT_LE(more, bar);
  }
}

TEST_P(NvmeTurnsTest, TheLeaseOfADeadClientDoesNotWaitForItsQueue) {
  absl::Duration took;
  for (int i = 0; i < kTries; ++i) {
    const ChildProcess flood = StartFlood();
    ASSERT_OK_AND_ASSIGN(WireClient heir, daemon_->Connect("heir"));
    flood.Signal(SIGKILL);
    ASSERT_TRUE(flood.WaitDead(kLong));
    const absl::Time dead = absl::Now();
    // The heir waits inside the server. As long as nobody has seen the death it is refused.
    const TierMap<int64_t> all = {{0, kGiB, kGiB}};
    absl::Status leased;
    do {
      leased = heir.OpenLease(all, all).status();
    } while (absl::IsResourceExhausted(leased) && absl::Now() < dead + kLong);
    took = absl::Now() - dead;
    ASSERT_OK(leased);
    ASSERT_OK(heir.CloseSession());
    std::printf("%s: %d MiB with 100 queued writes of 64 MiB free after %s\n", GetParam().c_str(),
                static_cast<int>(kLeaseMib), absl::FormatDuration(took).c_str());
    if (took <= kFreeBar) break;
  }
  if (kTimesCount) {
    EXPECT_LE(took, kFreeBar);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, NvmeTurnsTest, ::testing::Values("io_uring", "pread"),
                         [](const auto& tested) {
                           return tested.param == "pread" ? "Pread" : "Uring";
                         });

}  // namespace
}  // namespace gemini::server
