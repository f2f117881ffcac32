// SPDX-License-Identifier: Apache-2.0
#include "server/daemon_options.h"

#include <string>
#include <vector>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kAvailable = 16 * kGiB;

absl::StatusOr<DaemonOptions> Parse(const std::vector<std::string>& arguments) {
  return ParseDaemonOptions(arguments, kAvailable);
}

TEST(DaemonOptionsTest, WithoutAGpuDeviceIsAQuarterOfTheMachinesMemory) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"--device", "host"}}) {
    ASSERT_OK_AND_ASSIGN(const DaemonOptions options, Parse(arguments));
    EXPECT_EQ(options.gpu, std::nullopt);
    EXPECT_EQ(options.server.capacity_bytes[Tier::kDevice], 4 * kGiB);
    EXPECT_EQ(options.server.capacity_bytes[Tier::kHost], 9 * kGiB);
  }
}

TEST(DaemonOptionsTest, AGpuTakesNothingOfTheMachinesMemory) {
  ASSERT_OK_AND_ASSIGN(const DaemonOptions options, Parse({"--device", "cuda:1"}));
  EXPECT_EQ(options.gpu, 1);
  EXPECT_FALSE(options.device_memory_given);
  EXPECT_EQ(options.server.capacity_bytes[Tier::kDevice], 0);
  EXPECT_EQ(options.server.capacity_bytes[Tier::kHost], 12 * kGiB);
  ASSERT_OK_AND_ASSIGN(const DaemonOptions large, Parse({"--device", "cuda", "--device-memory",
                                                         "24GiB", "--host-memory", "16GiB"}));
  EXPECT_EQ(large.gpu, 0);
  EXPECT_TRUE(large.device_memory_given);
  EXPECT_EQ(large.server.capacity_bytes[Tier::kDevice], 24 * kGiB);
  EXPECT_EQ(large.server.capacity_bytes[Tier::kHost], 16 * kGiB);
}

TEST(DaemonOptionsTest, MoreThanTheMachineHas) {
  EXPECT_THAT(
      Parse({"--device-memory", "8GiB", "--host-memory", "9GiB"}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("device-memory 8 GiB and host-memory 9 GiB: more than the 16 GiB")));
  EXPECT_THAT(Parse({"--device", "cuda:0", "--host-memory", "17GiB"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("host-memory 17 GiB: more than the 16 GiB")));
}

TEST(DaemonOptionsTest, DevicesThatAreNone) {
  for (const std::string bad : {"gpu", "cuda:", "cuda:-1", "cuda:0x", "cuda:99999999999", "Host"}) {
    EXPECT_THAT(Parse({"--device", bad}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("device '" + bad + "': cpu or host, or a GPU such as cuda:0")));
  }
}

}  // namespace
}  // namespace gemini::server
