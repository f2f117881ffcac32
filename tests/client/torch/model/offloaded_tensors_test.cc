// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/offloaded_tensors.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/empty.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client::hooks {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTensorBytes = 3 * kTestChunkBytes + 400;  // Four chunks, the last one not full.

class OffloadedTensorsTest : public SessionFixture {
 protected:
  void OpenTensors(int64_t keep_tensors, int64_t host_slots, int64_t nvme_slots = 0) {
    OpenSession(/*device_slots=*/4, host_slots, nvme_slots);
    ASSERT_OK_AND_ASSIGN(
        tensors_, OffloadedTensors::Open(*session_, {.space_name = "activations",
                                                     .keep_bytes = keep_tensors * kTensorBytes,
                                                     .host_bytes = host_slots * kTestChunkBytes,
                                                     .nvme_bytes = nvme_slots * kTestChunkBytes}));
  }
  void TearDown() override { tensors_.reset(); }
  static at::Tensor Random(int seed) {
    at::Tensor tensor = at::empty({kTensorBytes / 4});
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return tensor.normal_(0, 1, generator).view({4, -1});
  }
  // Puts `count` tensors and lets go of them.
  std::vector<int64_t> PutMany(int count) {
    std::vector<int64_t> keys;
    for (int i = 0; i < count; ++i) {
      const absl::StatusOr<int64_t> key = tensors_->Put(Random(i));
      EXPECT_OK(key);
      if (key.ok()) keys.push_back(*key);
    }
    return keys;
  }
  void TakeAll(const std::vector<int64_t>& keys) {
    for (size_t i = keys.size(); i-- > 0;) {
      ASSERT_OK_AND_ASSIGN(const at::Tensor tensor, tensors_->Take(keys[i]));
      EXPECT_TRUE(tensor.equal(Random(static_cast<int>(i)))) << i;
      if (i == 0) continue;
      ASSERT_OK(tensors_->Prefetch(keys[i - 1]));
    }
  }
  std::unique_ptr<OffloadedTensors> tensors_;
};

TEST_F(OffloadedTensorsTest, AllComeBackWithTheirBitsAndTheNewestNeverLeft) {
  OpenTensors(/*keep_tensors=*/3, /*host_slots=*/100);
  for (int round = 1; round <= 3; ++round) {
    TakeAll(PutMany(10));
    EXPECT_EQ(tensors_->bytes_to_host(), round * 7 * kTensorBytes);
    EXPECT_EQ(tensors_->bytes_to_device(), round * 7 * kTensorBytes);
  }
}

TEST_F(OffloadedTensorsTest, WhatHasLeftHoldsNoDeviceMemory) {
  OpenTensors(/*keep_tensors=*/0, /*host_slots=*/100);
  at::Tensor tensor = Random(0);
  const c10::weak_intrusive_ptr<c10::StorageImpl> watched(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
  ASSERT_OK(tensors_->Put(std::exchange(tensor, {})));
  PutMany(3);  // At most two are on their way.
  EXPECT_TRUE(watched.expired());
}

TEST_F(OffloadedTensorsTest, ATensorMayBeTakenInAnyOrder) {
  OpenTensors(/*keep_tensors=*/2, /*host_slots=*/100);
  const std::vector<int64_t> keys = PutMany(6);
  for (const int i : {4, 0, 5, 3, 1, 2}) {
    ASSERT_OK_AND_ASSIGN(const at::Tensor tensor, tensors_->Take(keys[i]));
    EXPECT_TRUE(tensor.equal(Random(i))) << i;
  }
  TakeAll(PutMany(6));
}

TEST_F(OffloadedTensorsTest, WhatIsForgottenHasNoRoomAnyMore) {
  // Of six tensors, four leave: there is room for no more.
  OpenTensors(/*keep_tensors=*/2, /*host_slots=*/SpareSlots({}) + 4 * 4);
  for (int round = 0; round < 4; ++round) {
    const std::vector<int64_t> keys = PutMany(6);
    // Away, leaving, and coming.
    ASSERT_OK(tensors_->Prefetch(keys.front()));
    tensors_->Clear();
  }
  TakeAll(PutMany(6));
}

TEST_F(OffloadedTensorsTest, WhatHostCannotHoldGoesToNvme) {
  OpenTensors(/*keep_tensors=*/1, /*host_slots=*/SpareSlots({}) + 4, /*nvme_slots=*/80);
  TakeAll(PutMany(12));
}

TEST_F(OffloadedTensorsTest, AFullHostIsAnErrorWithNumbersAndAdvice) {
  OpenTensors(/*keep_tensors=*/0, /*host_slots=*/SpareSlots({}));
  const std::vector<int64_t> keys = PutMany(SpareSlots({}) / 4);
  EXPECT_THAT(tensors_->Put(Random(9)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("raise the host memory")));
}

TEST_F(OffloadedTensorsTest, WithoutRoomForCopiesUnderWayItIsRefused) {
  OpenSession(4, SpareSlots({}), 0);
  EXPECT_THAT(OffloadedTensors::Open(*session_,
                                     {.space_name = "activations", .host_bytes = kTestChunkBytes}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("raise the host memory")));
}

}  // namespace
}  // namespace gemini::client::hooks
