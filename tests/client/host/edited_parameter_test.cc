// SPDX-License-Identifier: Apache-2.0
#include "client/host/edited_parameter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "client/device/copy_batch.h"
#include "client/kernels/element_values.h"
#include "gemini/half_float.h"
#include "gemini/state_format.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kCount = kTestChunkBytes / 2;

class EditedParameterTest : public SessionFixture,
                            public ::testing::WithParamInterface<ElementType> {
 protected:
  void Open(int64_t host_slots, int64_t nvme_slots) {
    OpenSession(/*device_slots=*/8, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    auto store = session_->OpenSpace({.name = "store",
                                      .num_bundles = 2,
                                      .host_slots = host_slots,
                                      .nvme_slots = nvme_slots,
                                      .format = {.element = GetParam()}});
    ASSERT_OK(store);
    store_ = *store;
    std::normal_distribution<float> normal;
    for (float& value : values_) value = normal(random_);
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    ValueChunks to = {.format = {.element = GetParam()}, .chunk_bytes = kTestChunkBytes};
    for (const ChunkKind kind : KindsOfValue(store_->format(), ChunkKind::kParam)) {
      ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
      to.chunks.push_back(spare.data());
      fresh.emplace_back(kind, std::move(spare));
    }
    StoreValues(to, 0, values_);
    ASSERT_OK(store_->Commit(BundleId(0), 3, absl::MakeSpan(fresh)));
  }

  std::vector<float> Read() {
    std::vector<float> values(kCount);
    std::vector<HostChunk> held;
    ValueChunks from = {.format = {.element = GetParam()}, .chunk_bytes = kTestChunkBytes};
    for (const ChunkKind kind : KindsOfValue(store_->format(), ChunkKind::kParam)) {
      auto chunk = store_->Acquire(ChunkOf(BundleId(0), kind));
      EXPECT_OK(chunk);
      if (!chunk.ok()) return {};
      from.chunks.push_back(chunk->data());
      held.push_back(*std::move(chunk));
    }
    LoadValues(from, 0, absl::MakeSpan(values));
    return values;
  }

  // A spare with the committed bytes of the param chunk, but for every tenth element.
  HostChunk Edited() {
    auto edited = store_->AcquireSpare();
    auto param = store_->Acquire(kParam);
    EXPECT_OK(edited);
    EXPECT_OK(param);
    if (!edited.ok() || !param.ok()) return {};
    std::memcpy(edited->data(), param->data(), kTestChunkBytes);
    const uint16_t bits = GetParam() == ElementType::kBf16 ? Bf16Of(kNew) : Fp16Of(kNew);
    for (int64_t i = 0; i < kCount; i += 10) std::memcpy(edited->data() + 2 * i, &bits, 2);
    return *std::move(edited);
  }

  static constexpr ChunkId kParam = ChunkOf(BundleId(0), ChunkKind::kParam);
  static constexpr float kNew = -0.375;  // Both types have it.
  std::mt19937_64 random_{5};
  ChunkStore* store_ = nullptr;
  std::vector<float> values_ = std::vector<float>(kCount);
};

INSTANTIATE_TEST_SUITE_P(Types, EditedParameterTest,
                         ::testing::Values(ElementType::kBf16, ElementType::kFp16),
                         [](const auto& test) { return std::string(ElementTypeName(test.param)); });

TEST_P(EditedParameterTest, ChangedElementsGetTheirNumberAndOthersKeepTheirValue) {
  Open(/*host_slots=*/16, /*nvme_slots=*/0);
  EXPECT_TRUE(HasMaster(*store_, kParam));
  EXPECT_FALSE(HasMaster(*store_, ChunkOf(BundleId(0), ChunkKind::kMaster)));
  EXPECT_FALSE(HasMaster(*store_, ChunkOf(BundleId(1), ChunkKind::kParam)));
  ASSERT_OK(CommitEdited(*store_, kParam, Edited()));
  std::vector<float> expected = values_;
  for (int64_t i = 0; i < kCount; i += 10) expected[i] = kNew;
  EXPECT_EQ(Read(), expected);
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), 3);
}

TEST_P(EditedParameterTest, WithoutASlotForTheMasterNothingChanges) {
  const auto kinds = KindsOfValue({.element = GetParam()}, ChunkKind::kParam).size();
  Open(kinds + 1, /*nvme_slots=*/0);  // One spare: that of the parameter.
  EXPECT_THAT(CommitEdited(*store_, kParam, Edited()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Read(), values_);
}

// Part by part, as where a write-back of several bundles failed in the middle and is made again.
TEST_P(EditedParameterTest, WhatAnUpdateMadeOnDeviceIsNoEditUntilAllOfItIsWrittenBack) {
  Open(/*host_slots=*/24, /*nvme_slots=*/0);
  if (HasFatalFailure()) return;
  EXPECT_FALSE(IsOnDeviceAlone(*store_, BundleId(0)));
  DeviceVersion version = {.bundle = BundleId(0), .slots = {}};
  int64_t slot = 0;
  for (const ChunkKind kind : UpdatedKinds(store_->format())) version.slots[kind] = SlotId(slot++);
  Intent intent;
  intent.step = 4;
  ASSERT_OK(store_->updates().Begin(intent, {}, {version}));
  EXPECT_TRUE(IsOnDeviceAlone(*store_, BundleId(0)));
  const std::vector<std::byte> updated(kTestChunkBytes, std::byte{0x11});
  CopyEngineHost copies;
  const auto write_back = [&](ChunkKind kind) {
    CopyBatch batch(copies);
    EXPECT_OK(batch.WriteBack(*store_, ChunkOf(BundleId(0), kind), updated.data(), {}));
  };
  write_back(ChunkKind::kParam);
  EXPECT_TRUE(IsOnDeviceAlone(*store_, BundleId(0)));
  write_back(ChunkKind::kParam);
  for (const ChunkKind kind : KindsOfValue(store_->format(), ChunkKind::kParam)) {
    if (kind != ChunkKind::kParam) write_back(kind);
  }
  EXPECT_FALSE(IsOnDeviceAlone(*store_, BundleId(0)));
  ASSERT_OK_AND_ASSIGN(const HostChunk param, store_->Acquire(kParam));
  EXPECT_TRUE(std::ranges::equal(updated, absl::MakeConstSpan(param.data(), kTestChunkBytes)));
}

}  // namespace
}  // namespace gemini::client
