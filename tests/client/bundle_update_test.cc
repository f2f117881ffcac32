// SPDX-License-Identifier: Apache-2.0
#include "client/bundle_update.h"

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "client/adamw.h"
#include "tests/client/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kElements = kTestChunkBytes / 4;
// Three tensors with gaps between and behind them.
constexpr int64_t kCount = 200;
constexpr std::array<int64_t, 3> kFirst = {0, 256, 512};

class BundleUpdateTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/4, /*host_slots=*/16, /*nvme_slots=*/0);
    if (HasFatalFailure()) return;
    auto store = session_->OpenSpace(
        {.name = "store", .num_bundles = 1, .host_slots = 16, .nvme_slots = 0, .num_tensors = 3});
    ASSERT_OK(store);
    store_ = *store;
    for (int64_t i = 0; i < 3; ++i) {
      pieces_.push_back({.tensor = i,
                         .chunk_offset_bytes = kFirst[i] * 4,
                         .tensor_offset_bytes = 0,
                         .size_bytes = kCount * 4});
    }
    param_ = RandomChunk();
    grad_ = RandomChunk();
    ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
    std::memcpy(spare.data(), param_.data(), kTestChunkBytes);
    std::pair<ChunkKind, HostChunk> fresh(ChunkKind::kParam, std::move(spare));
    ASSERT_OK(store_->Commit(BundleId(0), 0, absl::MakeSpan(&fresh, 1)));
    ASSERT_OK_AND_ASSIGN(const HostChunk grad,
                         store_->AcquireToOverwrite(ChunkOf(BundleId(0), ChunkKind::kGrad)));
    std::memcpy(grad.data(), grad_.data(), kTestChunkBytes);
  }
  std::vector<float> RandomChunk() {
    std::normal_distribution<float> normal;
    std::vector<float> values(kElements);
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::vector<float> Read(ChunkKind kind) {
    std::vector<float> values(kElements);
    auto chunk = store_->Acquire(ChunkOf(BundleId(0), kind));
    EXPECT_OK(chunk);
    if (chunk.ok()) std::memcpy(values.data(), chunk->data(), kTestChunkBytes);
    return values;
  }
  static Intent IntentFor(int64_t step) {
    return {.step = step,
            .learning_rate = 0.1,
            .beta1 = 0.9,
            .beta2 = 0.99,
            .epsilon = 1e-6,
            .weight_decay = 0.1,
            .clip_coefficient = 0.5,
            .tensors = {{true, true, step}, {false, true, 0}, {true, false, step + 4}}};
  }
  static AdamWSettings SettingsFor(const Intent& intent, int64_t tensor) {
    return {.learning_rate = intent.learning_rate,
            .beta1 = intent.beta1,
            .beta2 = intent.beta2,
            .epsilon = intent.epsilon,
            .weight_decay = intent.tensors[tensor].decayed ? intent.weight_decay : 0,
            .step = intent.tensors[tensor].step,
            .gradient_scale = intent.clip_coefficient};
  }

  std::mt19937_64 random_{3};
  ChunkStore* store_ = nullptr;
  std::vector<TensorPiece> pieces_;
  std::vector<float> param_, grad_;
};

TEST_F(BundleUpdateTest, UpdatesTheTensorsWithAGradientAndKeepsTheOthers) {
  std::vector<float> param = param_;
  std::vector<float> exp_avg(kElements), exp_avg_sq(kElements);
  for (int64_t step = 1; step <= 3; ++step) {
    const Intent intent = IntentFor(step);
    ASSERT_OK(store_->BeginUpdate(intent, {BundleId(0)}));
    EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, intent), IsOkAndHolds(true));
    for (const int64_t tensor : {0, 2}) {
      const int64_t at = kFirst[tensor];
      AdamWUpdate(SettingsFor(intent, tensor),
                  {&param[at], &grad_[at], &exp_avg[at], &exp_avg_sq[at], &param[at], &exp_avg[at],
                   &exp_avg_sq[at]},
                  kCount);
    }
    EXPECT_EQ(store_->CommittedStep(BundleId(0)), step);
    const std::vector<float> seen = Read(ChunkKind::kParam);
    for (const int64_t first : kFirst) {
      EXPECT_EQ(std::memcmp(&seen[first], &param[first], kCount * 4), 0) << step;
    }
    // What no tensor fills is zero, whatever the slot held before.
    EXPECT_EQ(seen[kCount], 0);
    EXPECT_EQ(seen[kElements - 1], 0);
    EXPECT_EQ(Read(ChunkKind::kExpAvg), exp_avg);
    EXPECT_EQ(Read(ChunkKind::kExpAvgSq), exp_avg_sq);
  }
}

TEST_F(BundleUpdateTest, WithoutAGradientOrWhenSkippedOnlyTheStepChanges) {
  Intent without = IntentFor(1);
  for (TensorIntent& tensor : without.tensors) tensor.has_gradient = false;
  ASSERT_OK(store_->BeginUpdate(without, {BundleId(0)}));
  EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, without), IsOkAndHolds(false));
  Intent skipped = IntentFor(2);
  skipped.skip = true;
  ASSERT_OK(store_->BeginUpdate(skipped, {BundleId(0)}));
  EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, skipped), IsOkAndHolds(false));
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), 2);
  EXPECT_EQ(Read(ChunkKind::kParam), param_);
  EXPECT_FALSE(store_->HasPayload(ChunkOf(BundleId(0), ChunkKind::kExpAvg)));
}

}  // namespace
}  // namespace gemini::client
