// SPDX-License-Identifier: Apache-2.0
// With a driver whose memory is the process's own, and tests/fake_nvml.cc in the place of NVML: its
// GPU has 24 GiB, and 20 GiB of them are free.
#include "server/tiers/gpu_device_cuda.h"

#include <memory>

#include "gemini/byte_size.h"
#include "server/embedded_server.h"
#include "server/tiers/gpu_device.h"
#include "server/tiers/tier_store.h"
#include "tests/fake_cuda_driver.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GpuDeviceTest : public ::testing::Test {
 protected:
  absl::Status Use(std::optional<int64_t> capacity_bytes, int ordinal = 0) {
    return UseGpuOf(fake_.driver(), ordinal, capacity_bytes, options_);
  }
  int64_t capacity_bytes() const { return options_.capacity_bytes[Tier::kDevice]; }

  FakeCudaDriver fake_{/*memory_bytes=*/kGiB, /*granularity_bytes=*/2 * kMiB};
  ServerOptions options_;
};

TEST_F(GpuDeviceTest, KnowsTheRateOfItsMemory) {
  ASSERT_OK(Use(std::nullopt));
  EXPECT_EQ(options_.gpu_memory_rate, 0);  // No GPU has a clock of 1 kHz.
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2'500'000);
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5'120);
  ASSERT_OK(Use(std::nullopt));
  EXPECT_DOUBLE_EQ(options_.gpu_memory_rate, 3.2e12);
}

TEST_F(GpuDeviceTest, TakesMostOfWhatIsFree) {
  ASSERT_OK(Use(std::nullopt));
  EXPECT_EQ(capacity_bytes(), 20 * kGiB / 16 * 15);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TierStore> store,
                       options_.make_device(capacity_bytes()));
  EXPECT_EQ(store->capacity_bytes(), capacity_bytes());
  EXPECT_EQ(store->slab_bytes(), 96 * kMiB);  // 18.75 GiB / 200, in multiples of 2 MiB.
}

TEST_F(GpuDeviceTest, TakesWhatItIsToldEvenWhereOthersHaveSomeOfIt) {
  for (const int64_t bytes : {64 * kMiB, 6 * kGiB, 24 * kGiB}) {
    ASSERT_OK(Use(bytes));
    EXPECT_EQ(capacity_bytes(), bytes);
  }
}

TEST_F(GpuDeviceTest, RefusesWhatItCannotHave) {
  EXPECT_THAT(Use(24 * kGiB + 1), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("24 GiB"), HasSubstr("20 GiB"))));
  for (const int64_t bytes : {int64_t{0}, 63 * kMiB}) {
    EXPECT_THAT(Use(bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 64 MiB")))
        << bytes;
  }
  EXPECT_THAT(Use(kGiB, /*ordinal=*/1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("cuda:1")));
  EXPECT_EQ(options_.make_device, nullptr);
}

TEST_F(GpuDeviceTest, EachCallOfTheDriverMayFail) {
  const int64_t before = fake_.num_calls();
  ASSERT_OK(Use(kGiB));
  const int64_t num_calls = fake_.num_calls() - before;
  constexpr int64_t kOfRate = 3;  // The last ones, which it can do without.
  EXPECT_GE(num_calls, 3 + kOfRate);
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2'500'000);
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5'120);
  for (int64_t call = 0; call < num_calls; ++call) {
    fake_.FailCall(call, CUDA_ERROR_UNKNOWN);
    const absl::Status used = Use(kGiB);
    if (call < num_calls - kOfRate) {
      EXPECT_THAT(used, StatusIs(absl::StatusCode::kUnavailable)) << call;
    } else {
      EXPECT_OK(used) << call;
      EXPECT_EQ(options_.gpu_memory_rate, 0) << call;
    }
  }
}

TEST_F(GpuDeviceTest, AServerStartsWithIt) {
  ASSERT_OK(Use(kGiB));
  options_.capacity_bytes[Tier::kHost] = kMiB;
  EXPECT_OK(EmbeddedServer::Start(options_));
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  EXPECT_THAT(EmbeddedServer::Start(options_), StatusIs(absl::StatusCode::kUnimplemented));
}

TEST_F(GpuDeviceTest, CountsWhereItsMemoryCannotBeShared) {
  ASSERT_OK(Use(kGiB));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<TierStore> store, options_.make_device(kGiB));
  EXPECT_TRUE(store->shares_memory());
  fake_.SetAttribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
  ASSERT_OK(Use(kGiB));
  ASSERT_OK_AND_ASSIGN(store, options_.make_device(kGiB));
  EXPECT_FALSE(store->shares_memory());
  EXPECT_EQ(store->gpu_uuid(), FakeCudaDriver::kUuid);
  EXPECT_EQ(store->capacity_bytes(), kGiB);
  EXPECT_EQ(store->slab_bytes(), 64 * kMiB);
}

}  // namespace
}  // namespace gemini::server
