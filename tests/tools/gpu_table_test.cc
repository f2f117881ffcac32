// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu_table.h"

#include <set>
#include <string>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuTableTest, FindsACardByItsName) {
  ASSERT_OK_AND_ASSIGN(const GpuModel gpu, FindGpu("rtx3090"));
  EXPECT_EQ(gpu.memory_bytes, 24 * kGiB);
  EXPECT_EQ(gpu.pcie_generation, 4);
  EXPECT_TRUE(gpu.has_bf16);
  ASSERT_OK_AND_ASSIGN(const GpuModel turing, FindGpu("rtx2060"));
  EXPECT_FALSE(turing.has_bf16);
}

TEST(GpuTableTest, SuggestsTheNearestNameForAnUnknownOne) {
  EXPECT_THAT(FindGpu("rtx309"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("did you mean 'rtx3090'"), HasSubstr("--gpu list"))));
  EXPECT_THAT(FindGpu("voodoo2"),
              StatusIs(absl::StatusCode::kNotFound, Not(HasSubstr("did you mean"))));
}

// By the rule of the GeForce architectures that the table's sources state: products of 16-bit
// matrices summed in fp32 run at twice the shaders' rate, on Turing at four times.
TEST(GpuTableTest, TheTensorRatesOfGeForceFollowFromTheShaders) {
  for (const GpuModel& gpu : AllGpus()) {
    if (gpu.name.substr(0, 3) != "rtx") continue;
    const double ratio = gpu.has_bf16 ? 2 : 4;
    EXPECT_NEAR(gpu.half_flops_per_second / gpu.fp32_flops_per_second, ratio, 0.02) << gpu.name;
  }
}

TEST(GpuTableTest, NamesAreUniqueAndEveryNumberIsGiven) {
  std::set<std::string> names;
  const std::string list = GpuListText();
  for (const GpuModel& gpu : AllGpus()) {
    EXPECT_TRUE(names.emplace(gpu.name).second) << gpu.name;
    EXPECT_THAT(list, HasSubstr(std::string(gpu.name)));
    EXPECT_GT(gpu.memory_bytes, 4 * kGiB) << gpu.name;
    EXPECT_GT(gpu.memory_bytes_per_second, 2e11) << gpu.name;
    EXPECT_GT(PcieBytesPerSecond(gpu.pcie_generation, gpu.pcie_lanes), 1e10) << gpu.name;
  }
  EXPECT_GE(names.size(), 20u);
}

TEST(GpuTableTest, ALinksRateIsThatOfItsLanes) {
  EXPECT_NEAR(PcieBytesPerSecond(3, 16), 15.75e9, 1e7);
  EXPECT_NEAR(PcieBytesPerSecond(4, 8), 15.75e9, 1e7);
  EXPECT_NEAR(PcieBytesPerSecond(5, 16), 63.0e9, 1e8);
  EXPECT_EQ(PcieBytesPerSecond(7, 16), 0);
}

}  // namespace
}  // namespace gemini::tools
