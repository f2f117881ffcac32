// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/host_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

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

TEST(SharesControlGroupsTest, ThisProcessDoesAndOneThatIsGoneDoesNot) {
  EXPECT_TRUE(SharesControlGroups(::getpid()));
  EXPECT_FALSE(SharesControlGroups(std::numeric_limits<pid_t>::max()));
}

TEST(DefaultDeviceBytesTest, IsAQuarterOrWhatHostLeavesAndASixteenthInAnyCase) {
  const auto device = [](int64_t host_bytes) {
    return DefaultDeviceBytes({.total_bytes = 80 * kGiB, .available_bytes = 64 * kGiB}, host_bytes);
  };
  EXPECT_EQ(device(0), 16 * kGiB);
  EXPECT_EQ(device(32 * kGiB), 16 * kGiB);
  // A twentieth of the machine, a part of what is available, and a part of HOST for its segments
  // and chunks stay free.
  EXPECT_NEAR(static_cast<double>(device(48 * kGiB)), (64. - 4 - 2 - 48 - 1.5) * kGiB, 1);
  EXPECT_EQ(device(60 * kGiB), 4 * kGiB);
  EXPECT_EQ(device(std::numeric_limits<int64_t>::max()), 4 * kGiB);
  // Less is available than is to stay free.
  EXPECT_EQ(DefaultDeviceBytes({.total_bytes = 1024 * kGiB, .available_bytes = 16 * kGiB}, kGiB),
            kGiB);
}

}  // namespace
}  // namespace gemini
