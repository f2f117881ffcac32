// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/host_memory.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;

class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/memory-XXXXXX";
    root_ = ::mkdtemp(name.data());
    Write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    1048576 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // Total and available.
  absl::StatusOr<std::pair<int64_t, int64_t>> Memory() {
    const auto memory = ReadHostMemoryIn(root_ + "/proc", root_ + "/cgroup");
    if (!memory.ok()) return memory.status();
    return std::pair(memory->total_bytes, memory->available_bytes);
  }
  std::string root_;
};

TEST_F(HostMemoryTest, WithoutGroupsItIsTheMachinesWord) {
  EXPECT_THAT(Memory(), IsOkAndHolds(Pair(9'000'000 * kKiB, kGiB)));
}

TEST_F(HostMemoryTest, TheTightestGroupAboveCountsAndItsCacheIsNotUsed) {
  Write("proc/self/cgroup", "0::/user/job\n");
  Write("cgroup/user/job/memory.max", "max\n");
  Write("cgroup/user/job/memory.current", "1\n");
  Write("cgroup/user/memory.max", absl::StrCat(512 * kMiB, "\n"));
  Write("cgroup/user/memory.current", absl::StrCat(400 * kMiB, "\n"));
  Write("cgroup/user/memory.stat", absl::StrCat("anon 5\ninactive_file ", 100 * kMiB, "\n"));
  EXPECT_THAT(Memory(), IsOkAndHolds(Pair(512 * kMiB, 212 * kMiB)));
}

TEST_F(HostMemoryTest, AGroupOfTheFirstVersionCountsToo) {
  Write("proc/self/cgroup", "5:cpu,memory:/job\n4:pids:/job\n");
  Write("cgroup/memory/job/memory.limit_in_bytes", absl::StrCat(100 * kMiB));
  Write("cgroup/memory/job/memory.usage_in_bytes", absl::StrCat(200 * kMiB));
  EXPECT_THAT(Memory(), IsOkAndHolds(Pair(100 * kMiB, 0)));
}

TEST_F(HostMemoryTest, AMachineThatSaysNothingIsAnError) {
  Write("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_THAT(Memory(), StatusIs(absl::StatusCode::kInternal));
}

TEST(HostRoomTest, WhoWouldTakeTheMachineAbove95PercentIsRefusedWithTheNumbers) {
  const HostMemory memory = {.total_bytes = 100 * kGiB, .available_bytes = 30 * kGiB};
  EXPECT_OK(CheckHostRoom(memory, 25 * kGiB - kMiB, 0, "space s"));
  EXPECT_THAT(CheckHostRoom(memory, 25 * kGiB + kMiB, 0, "space s"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("space s needs 25"),
                             HasSubstr("30 GiB of 100 GiB available now, and 5 GiB of them stay"),
                             HasSubstr("pass --nvme"))));
  EXPECT_OK(CheckHostRoom(memory, 15 * kGiB - kMiB, 10 * kGiB, "space s"));
  EXPECT_THAT(
      CheckHostRoom(memory, 15 * kGiB + kMiB, 10 * kGiB, "space s"),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("space s needs 15"), HasSubstr("10 GiB of them are jobs' DEVICE"))));
  // Above it already: even the smallest is too much.
  EXPECT_OK(CheckHostRoom({.total_bytes = 100 * kGiB, .available_bytes = 6 * kGiB}, kMiB, 0, "s"));
  EXPECT_THAT(CheckHostRoom({.total_bytes = 100 * kGiB, .available_bytes = 4 * kGiB}, kMiB, 0, "s"),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// Nothing is asked of a full machine: not refused.
TEST(HostRoomTest, NothingNeedsNoRoom) {
  EXPECT_OK(CheckHostRoom({.total_bytes = 100 * kGiB, .available_bytes = 0}, 0, kGiB, "s"));
}

}  // namespace
}  // namespace gemini::server
