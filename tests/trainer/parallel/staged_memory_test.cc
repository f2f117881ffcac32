// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/staged_memory.h"

#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/exchange_device_host.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;
using Staged = std::shared_ptr<StagedMemory>;

constexpr int64_t kLeast = 64 << 10;

// A moment that comes when the test says so, or an error.
class TestPoint final : public StreamPoint {
 public:
  explicit TestPoint(absl::StatusOr<bool> reached) : reached_(std::move(reached)) {}
  absl::Status MakeOperatorsWait() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Reached() override { return reached_; }
  void Reach() { reached_ = true; }

 private:
  absl::StatusOr<bool> reached_;
};

class StagedMemoryTest : public ::testing::Test {
 protected:
  Staged Take(int64_t size_bytes) {
    absl::StatusOr<Staged> taken = memories_.Take(size_bytes);
    EXPECT_OK(taken);
    return taken.ok() ? *std::move(taken) : nullptr;
  }
  static void GiveBack(const Staged& memory) {
    memory->is_taken.store(false, std::memory_order_release);
  }

  const std::shared_ptr<ExchangeDevice> device_ = MakeHostExchange(CallersMemory::kOnHost);
  StagedMemories memories_{*device_};
};

TEST_F(StagedMemoryTest, ThereIsEnoughOnBothSides) {
  for (const auto& [wanted, made] : {std::pair<int64_t, int64_t>(1, kLeast),
                                     {kLeast, kLeast},
                                     {kLeast + 1, 2 * kLeast},
                                     {5 * kLeast, 8 * kLeast}}) {
    const Staged memory = Take(wanted);
    EXPECT_EQ(memory->size_bytes, made) << wanted;
    EXPECT_TRUE(memory->is_taken);
    // All of it is there, the device's on the device.
    for (const auto& [side, is_on_device] :
         {std::pair(memory->host, false), std::pair(memory->device, true)}) {
      side->bytes()[made - 1] = std::byte{1};
      EXPECT_EQ(device_->IsDeviceMemory(side->bytes()), is_on_device);
    }
  }
}

TEST_F(StagedMemoryTest, WhatIsTakenIsNobodyElses) {
  const Staged one = Take(100);
  const Staged other = Take(100);
  EXPECT_NE(one, other);
  GiveBack(one);
  EXPECT_EQ(Take(200), one);
  EXPECT_TRUE(one->is_taken);
  EXPECT_NE(Take(200), one);
}

// The host has done with it, and the device may still copy.
TEST_F(StagedMemoryTest, WhatTheDeviceUsesIsLeftToIt) {
  const Staged memory = Take(100);
  const auto point = std::make_shared<TestPoint>(false);
  memory->point = point;
  GiveBack(memory);
  const Staged other = Take(100);
  EXPECT_NE(other, memory);
  point->Reach();
  EXPECT_EQ(Take(100), memory);
  EXPECT_EQ(memory->point, nullptr);  // Else the next taker were taken for the one before.
}

TEST_F(StagedMemoryTest, TheSmallestThatIsLargeEnoughIsTaken) {
  const Staged large = Take(4 * kLeast);
  const Staged small = Take(kLeast);
  const Staged middle = Take(2 * kLeast);
  for (const Staged& one : {large, small, middle}) GiveBack(one);
  EXPECT_EQ(Take(kLeast + 1), middle);
  EXPECT_EQ(Take(kLeast + 1), large);
  EXPECT_EQ(Take(1), small);
}

TEST_F(StagedMemoryTest, AStreamThatHasFailedIsSaid) {
  const Staged memory = Take(100);
  memory->point = std::make_shared<TestPoint>(absl::UnavailableError("the GPU is lost"));
  GiveBack(memory);
  EXPECT_THAT(memories_.Take(100),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the GPU is lost")));
}

// Has no room on one of the two sides.
class FullDevice final : public ExchangeDevice {
 public:
  explicit FullDevice(bool is_host_full) : is_host_full_(is_host_full) {}
  absl::Status Use() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<ExchangeStream>> MakeStream() override {
    return device_->MakeStream();
  }
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(int64_t size_bytes) override {
    if (!is_host_full_) return absl::ResourceExhaustedError("the device is full");
    return device_->MakeDeviceMemory(size_bytes);
  }
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeHostMemory(int64_t size_bytes) override {
    if (is_host_full_) return absl::ResourceExhaustedError("the host is full");
    return device_->MakeHostMemory(size_bytes);
  }
  bool IsDeviceMemory(const void* bytes) override { return device_->IsDeviceMemory(bytes); }

 private:
  const std::shared_ptr<ExchangeDevice> device_ = MakeHostExchange(CallersMemory::kOnHost);
  const bool is_host_full_;
};

TEST(StagedMemoryFullTest, WhereThereIsNoRoomItIsSaidEachTime) {
  for (const bool is_host_full : {false, true}) {
    FullDevice device(is_host_full);
    StagedMemories memories(device);
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(memories.Take(1), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr(is_host_full ? "the host" : "the device")));
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
