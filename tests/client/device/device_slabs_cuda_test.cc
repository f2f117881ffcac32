// SPDX-License-Identifier: Apache-2.0
// With slabs of the server's store, and a driver whose memory is the process's own.
#include "client/device/device_slabs_cuda.h"

#include <memory>
#include <utility>

#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/fake_cuda_driver.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceSlabsCudaTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSlab = 2 * kMiB;
  static constexpr int64_t kMost = 4;

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(store_, server::MakeCudaTierStore(fake_.driver(), 0, kGiB, kSlab));
    ASSERT_OK_AND_ASSIGN(grant_, store_->Make(kSlab, kMost + 1));
  }
  void TearDown() override {
    store_->Destroy(std::move(grant_));
    EXPECT_EQ(fake_.num_handles(), 0);
    EXPECT_EQ(fake_.num_ranges(), 0);
  }
  absl::StatusOr<std::unique_ptr<DeviceSlabsCuda>> Reserve(bool is_counted = false) {
    return DeviceSlabsCuda::Reserve(fake_.driver(), 0,
                                    {.slab_bytes = kSlab,
                                     .num_slabs = kMost,
                                     .gpu_uuid = FakeCudaDriver::kUuid,
                                     .is_counted = is_counted});
  }
  int fd(int64_t slab) const { return grant_.extents[slab].fd.get(); }

  FakeCudaDriver fake_{/*memory_bytes=*/64 * kMiB, /*granularity_bytes=*/2 * kMiB};
  std::unique_ptr<server::TierStore> store_;
  server::TierGrant grant_;
};

TEST_F(DeviceSlabsCudaTest, SlabsLieBehindEachOtherAndAreTheServersOwn) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> slabs, Reserve());
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> same, Reserve());
  EXPECT_EQ(slabs->num_mapped(), 0);
  for (int64_t i = 0; i < kMost; ++i) {
    ASSERT_OK(slabs->Map(fd(i)));
    ASSERT_OK(same->Map(fd(i)));
  }
  EXPECT_EQ(fake_.num_handles(), 0);
  EXPECT_EQ(slabs->num_mapped(), kMost);
  for (int64_t i = 0; i < kMost * kSlab; i += 4096) {
    slabs->data()[i] = static_cast<std::byte>(i / 4096 % 251);
  }
  for (int64_t i = 0; i < kMost * kSlab; i += 4096) {
    ASSERT_EQ(same->data()[i], static_cast<std::byte>(i / 4096 % 251)) << i;
  }
  EXPECT_THAT(slabs->Map(fd(kMost)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("4 of 2 MiB")));
}

TEST_F(DeviceSlabsCudaTest, WhatIsKeptStaysWhereItIsAndOthersComeBehindIt) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> slabs, Reserve());
  for (int64_t i = 0; i < 3; ++i) ASSERT_OK(slabs->Map(fd(i)));
  std::byte* const data = slabs->data();
  data[kSlab - 1] = std::byte{1};
  data[2 * kSlab] = std::byte{2};
  ASSERT_OK(slabs->Keep(1));
  EXPECT_EQ(slabs->num_mapped(), 1);
  EXPECT_EQ(fake_.num_mappings(), 1);
  EXPECT_EQ(data[kSlab - 1], std::byte{1});
  ASSERT_OK(slabs->Map(fd(4)));
  ASSERT_OK(slabs->Map(fd(2)));
  EXPECT_EQ(slabs->data(), data);
  EXPECT_EQ(data[kSlab], std::byte{0});
  EXPECT_EQ(data[2 * kSlab], std::byte{2});
  ASSERT_OK(slabs->Keep(8));  // There are fewer.
  EXPECT_EQ(slabs->num_mapped(), 3);
}

TEST_F(DeviceSlabsCudaTest, ItsEndLeavesNothing) {
  {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> slabs, Reserve());
    ASSERT_OK(slabs->Map(fd(0)));
    EXPECT_EQ(fake_.num_mappings(), 1);
  }
  EXPECT_EQ(fake_.num_mappings(), 0);
}

TEST_F(DeviceSlabsCudaTest, EachRefusalOfTheDriverLeavesAllAsItWas) {
  for (int64_t call = 0; call < 2; ++call) {  // Device, UUID.
    fake_.FailCall(call, CUDA_ERROR_UNKNOWN);
    EXPECT_THAT(Reserve(), StatusIs(absl::StatusCode::kUnavailable));
  }
  fake_.FailCall(2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(Reserve(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("8 MiB")));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> slabs, Reserve());
  ASSERT_OK(slabs->Map(fd(0)));
  slabs->data()[0] = std::byte{3};
  for (int64_t failing = 0;; ++failing) {
    const int64_t calls_before = fake_.num_calls();
    fake_.FailCall(failing, CUDA_ERROR_UNKNOWN);
    const absl::Status mapped = slabs->Map(fd(1));
    if (fake_.num_calls() - calls_before <= failing) {
      ASSERT_OK(mapped);
      EXPECT_EQ(failing, 4);  // Import, map, access, release.
      break;
    }
    EXPECT_THAT(mapped, StatusIs(absl::StatusCode::kUnavailable)) << failing;
    EXPECT_EQ(slabs->num_mapped(), 1);
    EXPECT_EQ(fake_.num_mappings(), 1);
    EXPECT_EQ(fake_.num_handles(), 0);
  }
  fake_.FailCall(0, CUDA_ERROR_UNKNOWN);
  EXPECT_THAT(slabs->Keep(0), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cuMemUnmap")));
  EXPECT_EQ(slabs->num_mapped(), 2);
  EXPECT_EQ(slabs->data()[0], std::byte{3});
  ASSERT_OK(slabs->Keep(0));
}

// What a server that lies sends: too small, or no memory of a GPU at all.
TEST_F(DeviceSlabsCudaTest, ADescriptorThatIsNoSlabIsRefused) {
  ASSERT_OK_AND_ASSIGN(server::TierGrant large, store_->Make(2 * kSlab, 1));
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<DeviceSlabsCuda> slabs,
      DeviceSlabsCuda::Reserve(
          fake_.driver(), 0,
          {.slab_bytes = 2 * kSlab, .num_slabs = kMost, .gpu_uuid = FakeCudaDriver::kUuid}));
  EXPECT_THAT(slabs->Map(fd(0)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cuMemMap")));
  EXPECT_FALSE(slabs->Map(-1).ok());
  EXPECT_EQ(slabs->num_mapped(), 0);
  EXPECT_OK(slabs->Map(large.extents[0].fd.get()));
  store_->Destroy(std::move(large));
}

// Its memory could be reached over a link, at a link's speed.
TEST_F(DeviceSlabsCudaTest, AnotherGpusSlabsAreRefused) {
  EXPECT_THAT(DeviceSlabsCuda::Reserve(
                  fake_.driver(), 0, {.slab_bytes = kSlab, .num_slabs = 1, .gpu_uuid = "another"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("another"), HasSubstr(FakeCudaDriver::kUuid))));
}

TEST_F(DeviceSlabsCudaTest, CountedSlabsAreTheProcesssOwn) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> slabs, Reserve(/*is_counted=*/true));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlabsCuda> others, Reserve(/*is_counted=*/true));
  for (int64_t i = 0; i < 2; ++i) {
    ASSERT_OK(slabs->Map(fd(i)));
    ASSERT_OK(others->Map(fd(i)));
    slabs->data()[i * kSlab] = std::byte{1};
    EXPECT_EQ(others->data()[i * kSlab], std::byte{0});
  }
  EXPECT_EQ(fake_.num_handles(), 0);
  fake_.SetMemoryBytes(0);
  EXPECT_THAT(slabs->Map(fd(2)), StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(slabs->Keep(1));
  EXPECT_EQ(fake_.num_mappings(), 3);
}

}  // namespace
}  // namespace gemini::client
