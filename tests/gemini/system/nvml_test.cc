// SPDX-License-Identifier: Apache-2.0
// With the library of tests/fake_nvml.cc in its place.
#include "gemini/system/nvml.h"

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

TEST(NvmlTest, SaysWhatAGpuHas) {
  ASSERT_OK_AND_ASSIGN(const GpuMemory memory,
                       ReadGpuMemory("00010203-0405-0607-0809-0a0b0c0d0e0f"));
  EXPECT_EQ(memory.total_bytes, 24 * kGiB);
  EXPECT_EQ(memory.free_bytes, 20 * kGiB);
}

TEST(NvmlTest, FindsAMigInstance) {
  ASSERT_OK_AND_ASSIGN(const GpuMemory memory,
                       ReadGpuMemory("11111111-1111-1111-1111-111111111111"));
  EXPECT_EQ(memory.total_bytes, 10 * kGiB);
  EXPECT_EQ(memory.free_bytes, 9 * kGiB);
}

TEST(NvmlTest, SaysHowBusyAGpuIs) {
  ASSERT_OK_AND_ASSIGN(const GpuUse use, ReadGpuUse("00010203-0405-0607-0809-0a0b0c0d0e0f"));
  EXPECT_EQ(use.memory.free_bytes, 20 * kGiB);
  EXPECT_EQ(use.busy_percent, 87);
  EXPECT_EQ(use.to_gpu_bytes_per_second, 12'000'000'000);
  EXPECT_EQ(use.from_gpu_bytes_per_second, 7'000'000'000);
}

TEST(NvmlTest, WhatAMigInstanceDoesNotSayIsLeftOut) {
  ASSERT_OK_AND_ASSIGN(const GpuUse use, ReadGpuUse("11111111-1111-1111-1111-111111111111"));
  EXPECT_EQ(use.memory.total_bytes, 10 * kGiB);
  EXPECT_FALSE(use.busy_percent.has_value());
  EXPECT_FALSE(use.to_gpu_bytes_per_second.has_value());
  EXPECT_FALSE(use.from_gpu_bytes_per_second.has_value());
}

TEST(NvmlTest, NamesAGpuThatItDoesNotKnow) {
  EXPECT_THAT(ReadGpuMemory("33333333-3333-3333-3333-333333333333"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("GPU 33333333-3333-3333-3333-333333333333: NVML error 6")));
}

TEST(NvmlTest, AFailureIsAStatus) {
  EXPECT_THAT(ReadGpuMemory("22222222-2222-2222-2222-222222222222"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("GPU is lost")));
  EXPECT_THAT(ReadGpuUse("22222222-2222-2222-2222-222222222222"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("GPU is lost")));
}

}  // namespace
}  // namespace gemini
