// SPDX-License-Identifier: Apache-2.0
// The client's end of the ring against a server that this test plays, word by word.
#include "client/host/nvme_ring_client.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gemini/crc32c.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace {
std::atomic<bool> g_wall_clock_jumps{false};
std::atomic<int64_t> g_wall_clock_seconds{0};
}  // namespace

// Stands before the C library's: each look at the wall clock may find it an hour later.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = ::syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && g_wall_clock_jumps) now->tv_sec += g_wall_clock_seconds += 3600;
  return static_cast<int>(result);
}

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGeneration = 5;

class NvmeRingClientTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    const SpaceShape shape = {.chunk_bytes = GetParam(),
                              .num_bundles = 1,
                              .host_slots = 2,
                              .nvme_slots = 2,
                              .slots_per_slab = 2};
    const auto memfd = [](int64_t size_bytes) {
      UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
      EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
      return fd;
    };
    const UniqueFd client = memfd(ClientSegmentLayout(1, 0).size_bytes);
    const UniqueFd server = memfd(sizeof(ServerSegmentShm));
    std::vector<UniqueFd> slabs;
    slabs.push_back(memfd(2 * shape.chunk_bytes));
    ASSERT_OK_AND_ASSIGN(server_map_, MappedMemory::Map(server.get(), sizeof(ServerSegmentShm),
                                                        MappedMemory::Access::kReadWrite));
    this->server().generation = kGeneration;
    ASSERT_OK_AND_ASSIGN(SpaceMemory memory,
                         SpaceMemory::Map(shape, client.get(), server.get(), slabs));
    memory_.emplace(std::move(memory));
    std::array<int, 2> sockets = {};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
    peer_ = UniqueFd(sockets[1]);
    connection_.emplace(UniqueFd(sockets[0]));
    kick_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    client_.emplace(*memory_, UniqueFd(::dup(kick_.get())), *connection_, kGeneration,
                    /*checksums=*/true);
    std::memset(memory_->slot_address(SlotId(1)), 7, static_cast<size_t>(GetParam()));
  }

  // The contents word of what the HOST slot holds now.
  uint64_t Contents() const {
    return PackContents(
        Crc32c({memory_->slot_address(SlotId(1)), static_cast<size_t>(GetParam())}));
  }

  ServerSegmentShm& server() { return *reinterpret_cast<ServerSegmentShm*>(server_map_.data()); }
  std::future<absl::Status> Write() {
    return std::async(std::launch::async, [this] {
      return client_->Transfer(IoOperation::kWrite, SlotId(1), SlotId(0));
    });
  }
  // Waits for the next request and returns its entry.
  IoEntryShm& AwaitRequest() {
    pollfd ready = {.fd = kick_.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ready, 1, /*timeout=*/10'000), 1) << "no request within 10 s";
    uint64_t kicks = 0;
    EXPECT_EQ(::read(kick_.get(), &kicks, sizeof(kicks)), 8);
    EXPECT_EQ(kicks, 1u);
    return memory_->ring()[taken_++ % kIoRingEntries];
  }
  void AwaitContents(const IoEntryShm& entry) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (entry.contents == 0 && absl::Now() < deadline) std::this_thread::yield();
    EXPECT_NE(entry.contents, 0u);
  }
  // Of the last request.
  void Complete(absl::StatusCode code, uint64_t contents) {
    const uint64_t sequence = taken_ - 1;
    server().contents[sequence % kIoRingEntries] = contents;
    server().completions[sequence % kIoRingEntries] =
        PackCompletion(sequence, static_cast<int>(code));
    ++server().completion_count;
    ::syscall(SYS_futex, &server().completion_count, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  MappedMemory server_map_;
  std::optional<SpaceMemory> memory_;
  UniqueFd peer_, kick_;
  std::optional<Connection> connection_;
  std::optional<NvmeRingClient> client_;
  uint64_t taken_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Sizes, NvmeRingClientTest,
                         ::testing::Values(4096, NvmeRingClient::kLateChecksumBytes));

TEST_P(NvmeRingClientTest, AWriteHasItsChecksumWhenItIsDone) {
  std::future<absl::Status> write = Write();
  IoEntryShm& entry = AwaitRequest();
  if (GetParam() >= NvmeRingClient::kLateChecksumBytes) AwaitContents(entry);
  EXPECT_EQ(entry.contents, Contents());
  Complete(absl::StatusCode::kOk, entry.contents);
  EXPECT_OK(write.get());
  EXPECT_EQ(memory_->header()->submit_tail, 1u);
}

TEST_P(NvmeRingClientTest, AWriteThatFailedIsNotDoneAgain) {
  std::future<absl::Status> write = Write();
  AwaitRequest();
  Complete(absl::StatusCode::kResourceExhausted, 0);
  EXPECT_THAT(write.get(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(memory_->header()->submit_tail, 1u);
}

TEST_P(NvmeRingClientTest, TheRingGoesRound) {
  for (int64_t i = 0; i < kIoRingEntries + 2; ++i) {
    std::future<absl::Status> write = Write();
    const IoEntryShm& entry = AwaitRequest();
    AwaitContents(entry);
    Complete(absl::StatusCode::kOk, entry.contents);
    ASSERT_OK(write.get());
  }
  EXPECT_EQ(memory_->header()->submit_tail, static_cast<uint64_t>(kIoRingEntries + 2));
}

// The second transfer finds the ring broken by the first, and says all the same what happened.
TEST_P(NvmeRingClientTest, EveryTransferBehindTheServersDeathSaysWhatToDo) {
  std::future<absl::Status> write = Write();
  AwaitRequest();
  peer_.Reset();
  EXPECT_THAT(write.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume")));
  EXPECT_THAT(Write().get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume")));
}

// The machine was suspended, or its clock set: a transfer's time-out is not over for that.
TEST_P(NvmeRingClientTest, AJumpOfTheWallClockEndsNoTransfer) {
  g_wall_clock_jumps = true;
  // Jumps are seen by who looks. Not by absl::Now at once, which asks the kernel now and then.
  const auto before = std::chrono::system_clock::now();
  EXPECT_GE(std::chrono::system_clock::now() - before, std::chrono::hours(1));
  std::future<absl::Status> write = Write();
  const IoEntryShm& entry = AwaitRequest();
  // Longer than a transfer goes without a look at the server.
  EXPECT_EQ(write.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  g_wall_clock_jumps = false;
  AwaitContents(entry);
  Complete(absl::StatusCode::kOk, entry.contents);
  EXPECT_OK(write.get());
}

class LateChecksumTest : public NvmeRingClientTest {};

INSTANTIATE_TEST_SUITE_P(Sizes, LateChecksumTest,
                         ::testing::Values(NvmeRingClient::kLateChecksumBytes, 64 << 20));

TEST_P(LateChecksumTest, AWriteThatWasDoneBeforeItIsDoneAgain) {
  std::future<absl::Status> write = Write();
  AwaitRequest();
  Complete(absl::StatusCode::kOk, 0);  // As if it had come too late.
  IoEntryShm& again = AwaitRequest();
  EXPECT_EQ(again.operation, static_cast<uint64_t>(IoOperation::kWrite));
  EXPECT_EQ(again.host_slot, 1u);
  EXPECT_EQ(again.nvme_slot, 0u);
  EXPECT_EQ(again.contents, Contents());
  Complete(absl::StatusCode::kOk, Contents());
  EXPECT_OK(write.get());
}

TEST_P(LateChecksumTest, AnErrorIsTheAnswerThoughItsChecksumCameToo) {
  std::future<absl::Status> write = Write();
  AwaitContents(AwaitRequest());
  Complete(absl::StatusCode::kDataLoss, 0);
  EXPECT_THAT(write.get(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(memory_->header()->submit_tail, 1u);
}

TEST_P(LateChecksumTest, WritesThatFollowOneThatWasFasterHaveThemFirst) {
  std::future<absl::Status> write = Write();
  AwaitRequest();
  Complete(absl::StatusCode::kOk, 0);
  AwaitRequest();
  Complete(absl::StatusCode::kOk, Contents());
  ASSERT_OK(write.get());
  for (int64_t i = 0; i < NvmeRingClient::kEarlyChecksums; ++i) {
    write = Write();
    const uint64_t contents = AwaitRequest().contents;
    EXPECT_EQ(contents, Contents()) << i;
    Complete(absl::StatusCode::kOk, contents == 0 ? Contents() : contents);
    ASSERT_OK(write.get());
  }
}

// The checksum of 64 MiB takes milliseconds, and its last byte is changed behind the request: only
// where the test is not let run for as long does the checksum miss that.
TEST_P(LateChecksumTest, TheWriteIsUnderWayBeforeIt) {
  std::byte& last = memory_->slot_address(SlotId(1))[GetParam() - 1];
  bool includes_the_change = GetParam() < 64 << 20;
  for (int i = 0; i < 50 && !includes_the_change; ++i) {
    std::future<absl::Status> write = Write();
    IoEntryShm& entry = AwaitRequest();
    last ^= std::byte{1};
    AwaitContents(entry);
    includes_the_change = entry.contents == Contents();
    Complete(absl::StatusCode::kOk, entry.contents);
    ASSERT_OK(write.get());
  }
  EXPECT_TRUE(includes_the_change);
}

}  // namespace
}  // namespace gemini::client
