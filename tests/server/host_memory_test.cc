// SPDX-License-Identifier: Apache-2.0
#include "server/host_memory.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

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
  absl::StatusOr<int64_t> Available() {
    return AvailableHostMemoryIn(root_ + "/proc", root_ + "/cgroup");
  }
  std::string root_;
};

TEST_F(HostMemoryTest, WithoutGroupsItIsTheMachinesWord) {
  EXPECT_THAT(Available(), IsOkAndHolds(kGiB));
}

TEST_F(HostMemoryTest, TheTightestGroupAboveCountsAndItsCacheIsNotUsed) {
  Write("proc/self/cgroup", "0::/user/job\n");
  Write("cgroup/user/job/memory.max", "max\n");
  Write("cgroup/user/job/memory.current", "1\n");
  Write("cgroup/user/memory.max", absl::StrCat(512 * kMiB, "\n"));
  Write("cgroup/user/memory.current", absl::StrCat(400 * kMiB, "\n"));
  Write("cgroup/user/memory.stat", absl::StrCat("anon 5\ninactive_file ", 100 * kMiB, "\n"));
  EXPECT_THAT(Available(), IsOkAndHolds(212 * kMiB));
}

TEST_F(HostMemoryTest, AGroupOfTheFirstVersionCountsToo) {
  Write("proc/self/cgroup", "5:cpu,memory:/job\n4:pids:/job\n");
  Write("cgroup/memory/job/memory.limit_in_bytes", absl::StrCat(100 * kMiB));
  Write("cgroup/memory/job/memory.usage_in_bytes", absl::StrCat(200 * kMiB));
  EXPECT_THAT(Available(), IsOkAndHolds(0));
}

TEST_F(HostMemoryTest, AMachineThatSaysNothingIsAnError) {
  Write("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_THAT(Available(), StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace gemini::server
