// SPDX-License-Identifier: Apache-2.0
// The I/O ring of a space, from the server's side, beside a client that writes its memory here.
#include "server/spaces/space.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/tiers/slot_dealing.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kChunkBytes = 4096;
constexpr int64_t kSlots = 4;  // In HOST and in NVME.
constexpr ClientSegmentLayout kLayout(/*num_bundles=*/1);

UniqueFd MakeMemfd(int64_t size_bytes) {
  UniqueFd fd(::memfd_create("space-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
  return fd;
}
MappedMemory MapOf(const UniqueFd& fd, int64_t size_bytes) {
  return *MappedMemory::Map(fd.get(), size_bytes, MappedMemory::Access::kReadWrite);
}
TierGrant MakeGrant() {
  TierGrant grant;
  grant.slot_bytes = kChunkBytes;
  grant.slots_per_extent = kSlots;
  grant.extents.push_back({UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), kSlots});
  return grant;
}

// Whether /proc says that the thread sleeps in the kernel.
bool Sleeps(pid_t thread) {
  std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/stat"));
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] == 'S';
}

class SpaceTest : public ::testing::Test {
 protected:
  SpaceTest() {
    SpaceMemory memory;
    memory.client_map = *PeerMemory::Map(client_fd_.get(), kLayout.size_bytes);
    memory.server_map = MapOf(server_fd_, sizeof(ServerSegmentShm));
    memory.host = MakeGrant();
    memory.nvme = MakeGrant();
    memory.nvme_places = DealSlots(memory.nvme);
    memory.nvme_contents.resize(kSlots);
    space_.emplace(1,
                   SpacePlan{.name = "test",
                             .chunk_bytes = kChunkBytes,
                             .num_bundles = 1,
                             .host_slots = kSlots,
                             .nvme_slots = kSlots},
                   std::move(memory), /*device_slots=*/0, /*generation=*/1);
  }

  Space& space() { return *space_; }
  std::atomic<uint64_t>& tail() {
    return reinterpret_cast<ClientSegmentHeaderShm*>(client_.data())->submit_tail;
  }
  ServerSegmentShm& server() { return *reinterpret_cast<ServerSegmentShm*>(server_.data()); }

  // Posts a request. Its sequence is `tail()` before.
  void Submit(IoOperation operation, uint64_t host_slot) {
    const uint64_t sequence = tail();
    IoEntryShm& entry = reinterpret_cast<IoEntryShm*>(
        client_.data() + kLayout.ring_offset)[sequence % kIoRingEntries];
    entry.operation = static_cast<uint64_t>(operation);
    entry.host_slot = host_slot;
    entry.nvme_slot = sequence % kSlots;
    entry.contents = operation == IoOperation::kWrite ? kUncheckedContents : 0;
    tail() = sequence + 1;
  }
  void SubmitWrites(int64_t count) {
    for (int64_t i = 0; i < count; ++i) Submit(IoOperation::kWrite, 0);
  }
  // One that is refused: there is no such slot.
  void SubmitInvalid(int64_t count) {
    for (int64_t i = 0; i < count; ++i) Submit(IoOperation::kWrite, kSlots);
  }
  // The sequences of what was taken.
  absl::StatusOr<bool> Take(int64_t most) {
    taken_.clear();
    sequences_.clear();
    return space().TakeRequests(most, [&](const Space::Transfer& transfer) {
      taken_.push_back(transfer);
      sequences_.push_back(transfer.sequence);
    });
  }
  bool IsCompleted(uint64_t sequence, absl::StatusCode code) {
    return server().completions[sequence % kIoRingEntries] ==
           PackCompletion(sequence, static_cast<int>(code));
  }

  std::vector<Space::Transfer> taken_;
  std::vector<uint64_t> sequences_;

 private:
  const UniqueFd client_fd_ = MakeMemfd(kLayout.size_bytes);
  const UniqueFd server_fd_ = MakeMemfd(sizeof(ServerSegmentShm));
  const MappedMemory client_ = MapOf(client_fd_, kLayout.size_bytes);
  const MappedMemory server_ = MapOf(server_fd_, sizeof(ServerSegmentShm));
  std::optional<Space> space_;
};

TEST_F(SpaceTest, TakesAsManyRequestsAsItIsAskedToAndSaysWhetherThereAreMore) {
  EXPECT_FALSE(space().HasRequests());
  EXPECT_THAT(Take(3), IsOkAndHolds(false));
  SubmitWrites(7);
  EXPECT_TRUE(space().HasRequests());
  EXPECT_THAT(Take(3), IsOkAndHolds(true));
  EXPECT_THAT(sequences_, ElementsAre(0, 1, 2));
  EXPECT_THAT(Take(3), IsOkAndHolds(true));
  EXPECT_THAT(Take(3), IsOkAndHolds(false));
  EXPECT_THAT(sequences_, ElementsAre(6));
  EXPECT_EQ(space().in_flight(), 7);
  EXPECT_THAT(Take(3), IsOkAndHolds(false));
  EXPECT_THAT(sequences_, IsEmpty());
}

// What is refused counts as taken, or a client that posts nothing else would hold the server up.
TEST_F(SpaceTest, RefusedRequestsCountAndAreAllCompleted) {
  SubmitInvalid(2);
  SubmitWrites(1);
  Submit(IoOperation::kRead, 0);  // Of slot 3, which nothing has filled.
  SubmitInvalid(1);
  EXPECT_THAT(Take(4), IsOkAndHolds(true));
  EXPECT_THAT(sequences_, ElementsAre(2));
  EXPECT_EQ(space().in_flight(), 1);
  EXPECT_TRUE(IsCompleted(0, absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(IsCompleted(1, absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(IsCompleted(3, absl::StatusCode::kDataLoss));
  EXPECT_EQ(server().completions[2], 0u);
  EXPECT_EQ(server().completion_count, 3u);
  space().Complete(taken_[0], absl::StatusCode::kOk);
  EXPECT_TRUE(IsCompleted(2, absl::StatusCode::kOk));
  EXPECT_EQ(server().completion_count, 4u);
  EXPECT_THAT(Take(4), IsOkAndHolds(false));
  EXPECT_EQ(server().completion_count, 5u);
}

// Each by a thread of its own, that waits for this completion alone.
TEST_F(SpaceTest, WhoeverWaitsForOneOfManyRefusedRequestsIsWoken) {
  constexpr uint64_t kRequests = 5;
  SubmitInvalid(kRequests);
  std::atomic<int> woken = 0;
  std::vector<std::atomic<pid_t>> ids(kRequests);
  std::vector<std::thread> waiters;
  for (uint64_t sequence = 0; sequence < kRequests; ++sequence) {
    waiters.emplace_back([&, sequence] {
      ids[sequence] = ::gettid();
      timespec until = {};
      ::clock_gettime(CLOCK_MONOTONIC, &until);
      until.tv_sec += 20;
      const long result = ::syscall(SYS_futex, &server().completion_count, FUTEX_WAIT_BITSET, 0,
                                    &until, nullptr, CompletionBit(sequence));
      if (result == 0) ++woken;
    });
  }
  for (const std::atomic<pid_t>& id : ids) {
    while (id == 0 || !Sleeps(id)) std::this_thread::yield();
  }
  EXPECT_THAT(Take(kRequests), IsOkAndHolds(false));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(woken, static_cast<int>(kRequests));
}

TEST_F(SpaceTest, WithAllEntriesInFlightNothingIsTakenUntilOneIsComplete) {
  SubmitWrites(kIoRingEntries);
  EXPECT_THAT(Take(2 * kIoRingEntries), IsOkAndHolds(false));
  ASSERT_EQ(taken_.size(), kIoRingEntries);
  const Space::Transfer first = taken_[0];
  SubmitWrites(2);  // As no honest client does, before it has read their completions.
  EXPECT_FALSE(space().HasRequests());
  EXPECT_THAT(Take(1), IsOkAndHolds(false));
  EXPECT_THAT(sequences_, IsEmpty());
  space().Complete(first, absl::StatusCode::kOk);
  EXPECT_TRUE(space().HasRequests());
  EXPECT_THAT(Take(16), IsOkAndHolds(false));  // The other one waits for the next completion.
  EXPECT_THAT(sequences_, ElementsAre(kIoRingEntries));
}

TEST_F(SpaceTest, OfARingWithMoreRequestsThanEntriesNothingIsTaken) {
  SubmitWrites(3);
  tail() = kIoRingEntries + 1;
  EXPECT_TRUE(space().HasRequests()) << "nobody would look at it again";
  EXPECT_THAT(Take(16), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(sequences_, IsEmpty());
  EXPECT_EQ(space().in_flight(), 0);
}

TEST_F(SpaceTest, AFenceAbortsWhatWaitsAndLeavesWhatIsInFlight) {
  SubmitWrites(5);
  EXPECT_THAT(Take(2), IsOkAndHolds(true));
  const std::vector<Space::Transfer> in_flight = taken_;
  space().Fence(/*generation=*/2);
  EXPECT_EQ(server().generation, 2u);
  for (uint64_t sequence = 2; sequence < 5; ++sequence) {
    EXPECT_TRUE(IsCompleted(sequence, absl::StatusCode::kAborted)) << sequence;
  }
  EXPECT_EQ(server().completions[0], 0u);
  EXPECT_EQ(space().in_flight(), 2);
  SubmitWrites(1);
  EXPECT_FALSE(space().HasRequests());
  EXPECT_THAT(Take(16), IsOkAndHolds(false));
  EXPECT_THAT(sequences_, IsEmpty());
  for (const Space::Transfer& transfer : in_flight) {
    space().Complete(transfer, absl::StatusCode::kOk);
  }
  EXPECT_TRUE(IsCompleted(1, absl::StatusCode::kOk));
  EXPECT_EQ(space().in_flight(), 0);
}

}  // namespace
}  // namespace gemini::server
