// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu_view.h"

#include "absl/status/status.h"
#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GpuUse Use() {
  return {.memory = {.total_bytes = 24 * kGiB, .free_bytes = 20 * kGiB},
          .busy_percent = 87,
          .to_gpu_bytes_per_second = 11 * kGiB,
          .from_gpu_bytes_per_second = 9 * kGiB};
}

TEST(GpuViewTest, ShowsUseAndRates) {
  EXPECT_EQ(GpuText("0001", /*is_counted=*/false, Use()),
            "\nGPU 0001: 87% busy, 4 GiB of 24 GiB used; over its link 11 GiB/s to it, 9 GiB/s "
            "back\n");
  const nlohmann::json gpu = GpuJson("0001", /*is_counted=*/false, Use());
  EXPECT_EQ(gpu["uuid"], "0001");
  EXPECT_EQ(gpu["used_bytes"], 4 * kGiB);
  EXPECT_EQ(gpu["total_bytes"], 24 * kGiB);
  EXPECT_EQ(gpu["busy_percent"], 87);
  EXPECT_EQ(gpu["bytes_to_gpu_per_second"], 11 * kGiB);
  EXPECT_EQ(gpu["bytes_from_gpu_per_second"], 9 * kGiB);
  EXPECT_FALSE(gpu["is_counted"].get<bool>());
}

// As a MIG instance, or an older driver.
TEST(GpuViewTest, WhatNvmlDoesNotSayIsNotMadeUp) {
  GpuUse use;
  use.memory = Use().memory;
  EXPECT_EQ(GpuText("0001", false, use),
            "\nGPU 0001: 4 GiB of 24 GiB used; over its link ? to it, ? back\n");
  const nlohmann::json gpu = GpuJson("0001", false, use);
  EXPECT_TRUE(gpu["busy_percent"].is_null());
  EXPECT_TRUE(gpu["bytes_to_gpu_per_second"].is_null());
}

TEST(GpuViewTest, SaysWhyThereIsNothingAndThatMemoryIsCounted) {
  const absl::StatusOr<GpuUse> lost = absl::UnavailableError("GPU is lost");
  EXPECT_THAT(GpuText("00\n01", /*is_counted=*/true, lost),
              HasSubstr("GPU 00\\n01: GPU is lost\n  its memory is counted, not shared"));
  EXPECT_THAT(GpuText("0001", false, lost), Not(HasSubstr("counted")));
  EXPECT_EQ(GpuJson("0001", true, lost)["error"], "GPU is lost");
}

}  // namespace
}  // namespace gemini::tools
