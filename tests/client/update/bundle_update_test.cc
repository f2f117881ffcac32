// SPDX-License-Identifier: Apache-2.0
#include "client/update/bundle_update.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/kernels/device_kernels_host.h"
#include "client/kernels/element_values.h"
#include "client/kernels/trust_ratio.h"
#include "client/kernels/trust_run.h"
#include "client/kernels/update_kernel.h"
#include "client/update/bundle_trust.h"
#include "gemini/half_float.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/split_float.h"
#include "gemini/state_format.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 10;
// Several for each thread, in every format.
static_assert(kChunkBytes / 4 >= 4 * kUpdatePartElements);

// Three tensors with gaps between and behind them. The second one has elements in both halves of
// the bundle. Tensors, gaps and blocks of norms go on where parts of threads end.
constexpr std::array<int64_t, 3> kFirst = {0, 16'640, 96'768};
constexpr std::array<int64_t, 3> kCount = {13'000, 80'000, 25'000};
constexpr std::array kThreads = {1, 2, 3, 5};

// In every format a bundle of 131,072 elements or, in fp32, the first half of them.
class BundleUpdateTest
    : public SessionFixture,
      public ::testing::WithParamInterface<std::tuple<ElementType, OptimizerKind, int>> {
 protected:
  void SetUp() override {
    chunk_bytes_ = kChunkBytes;
    const int64_t slots = UpdateSlots(format_) + 4;
    OpenSession(/*device_slots=*/4, slots, /*nvme_slots=*/0);
    if (HasFatalFailure()) return;
    auto store = session_->OpenSpace({.name = "store",
                                      .num_bundles = 1,
                                      .host_slots = slots,
                                      .nvme_slots = 0,
                                      .num_tensors = 3,
                                      .format = format_});
    ASSERT_OK(store);
    store_ = *store;
    for (int64_t i = 0; i < 3; ++i) {
      if (kFirst[i] >= num_elements_) break;
      const int64_t count = std::min(kCount[i], num_elements_ - kFirst[i]);
      counts_.push_back(count);
      pieces_.push_back({.tensor = i,
                         .chunk_offset_bytes = kFirst[i] * width_,
                         .tensor_offset_bytes = 0,
                         .size_bytes = count * width_});
    }
    CommitRandomParameters();
    WriteRandomGradients();
  }

  std::vector<float> RandomValues() {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(num_elements_));
    for (float& value : values) value = normal(random_);
    return values;
  }

  void CommitRandomParameters() {
    values_ = RandomValues();
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    ValueChunks to = {.format = format_, .chunk_bytes = kChunkBytes};
    for (const ChunkKind kind : KindsOfValue(format_, ChunkKind::kParam)) {
      ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
      to.chunks.push_back(spare.data());
      fresh.emplace_back(kind, std::move(spare));
    }
    StoreValues(to, 0, values_);
    ASSERT_OK(store_->Commit(BundleId(0), 0, absl::MakeSpan(fresh)));
  }

  void WriteRandomGradients() {
    grads_ = RandomValues();
    ASSERT_OK_AND_ASSIGN(const HostChunk grad,
                         store_->AcquireToOverwrite(ChunkOf(BundleId(0), ChunkKind::kGrad)));
    const ValueChunks at = {.format = format_, .chunk_bytes = kChunkBytes, .chunks = {grad.data()}};
    StoreValues(at, 0, grads_);
    LoadValues(at, 0, absl::MakeSpan(grads_));  // As rounded to the format.
  }

  // The fp32 values of a state; zeros where it has no chunks.
  std::vector<float> Read(ChunkKind value) {
    std::vector<float> values(static_cast<size_t>(num_elements_));
    std::vector<HostChunk> held;
    ValueChunks from = {.format = format_, .value = value, .chunk_bytes = kChunkBytes};
    for (const ChunkKind kind : KindsOfValue(format_, value)) {
      auto chunk = store_->Acquire(ChunkOf(BundleId(0), kind));
      EXPECT_OK(chunk);
      if (!chunk.ok()) return values;
      from.chunks.push_back(chunk->data());
      held.push_back(*std::move(chunk));
    }
    LoadValues(from, 0, absl::MakeSpan(values));
    return values;
  }

  Intent IntentFor(int64_t step) const {
    return {.step = step,
            .learning_rate = 0.1,
            .beta1 = 0.9,
            .beta2 = 0.99,
            .epsilon = 1e-6,
            .weight_decay = 0.1,
            .gradient_scale = 0.5,
            .optimizer = optimizer_,
            .momentum = 0.75,
            // The second tensor is of a parameter group of its own.
            .more_groups = {{.learning_rate = 0.05,
                             .beta1 = 0.8,
                             .beta2 = 0.95,
                             .epsilon = 1e-4,
                             .weight_decay = 0.2,
                             .momentum = 0.5,
                             .dampening = 0.25,
                             .nesterov = true}},
            .tensors = {{true, true, step, 0.25}, {true, false, step + 4, 2, 1}, {false, true, 0}}};
  }
  UpdateSettings SettingsFor(const Intent& intent, int64_t tensor) const {
    const GroupIntent group = tensor == 1 ? intent.more_groups[0]
                                          : GroupIntent{.learning_rate = intent.learning_rate,
                                                        .beta1 = intent.beta1,
                                                        .beta2 = intent.beta2,
                                                        .epsilon = intent.epsilon,
                                                        .weight_decay = intent.weight_decay,
                                                        .momentum = intent.momentum};
    return {.kind = optimizer_,
            .learning_rate = group.learning_rate,
            .beta1 = group.beta1,
            .beta2 = group.beta2,
            .epsilon = group.epsilon,
            .weight_decay = intent.tensors[tensor].decayed ? group.weight_decay : 0,
            .momentum = group.momentum,
            .dampening = group.dampening,
            .nesterov = group.nesterov,
            .step = intent.tensors[tensor].step,
            .gradient_scale = intent.gradient_scale,
            .trust_ratio = intent.tensors[tensor].trust_ratio};
  }

  const ElementType element_ = std::get<ElementType>(GetParam());
  const OptimizerKind optimizer_ = std::get<OptimizerKind>(GetParam());
  const StateFormat format_ = {.element = element_, .optimizer = optimizer_};
  const int64_t width_ = ElementBytes(element_);
  WorkerTeam team_{std::get<int>(GetParam())};
  const int64_t num_elements_ = kChunkBytes / width_;
  std::mt19937_64 random_{3};
  ChunkStore* store_ = nullptr;
  std::vector<TensorPiece> pieces_;
  std::vector<int64_t> counts_;  // Elements, by tensor.
  std::vector<float> values_, grads_;
};

std::string NameOf(const ::testing::TestParamInfo<BundleUpdateTest::ParamType>& test) {
  return absl::StrCat(ElementTypeName(std::get<0>(test.param)), "_",
                      OptimizerKindName(std::get<1>(test.param)), "_", std::get<2>(test.param),
                      "_threads");
}

INSTANTIATE_TEST_SUITE_P(Formats, BundleUpdateTest,
                         ::testing::Combine(::testing::ValuesIn(kAllElementTypes),
                                            ::testing::ValuesIn(kAllOptimizerKinds),
                                            ::testing::ValuesIn(kThreads)),
                         NameOf);

class BundleTrustTest : public BundleUpdateTest {};

INSTANTIATE_TEST_SUITE_P(Formats, BundleTrustTest,
                         ::testing::Combine(::testing::ValuesIn(kAllElementTypes),
                                            ::testing::Values(OptimizerKind::kLamb,
                                                              OptimizerKind::kLars),
                                            ::testing::ValuesIn(kThreads)),
                         NameOf);

TEST_P(BundleUpdateTest, UpdatesTheTensorsWithAGradientAndKeepsTheOthers) {
  std::vector<float> exp_avg(values_.size()), exp_avg_sq(values_.size());
  // What no tensor fills is zero, whatever the slot held before.
  std::vector<float> expected(values_.size());
  for (size_t i = 0; i < counts_.size(); ++i) {
    std::copy_n(&values_[kFirst[i]], counts_[i], &expected[kFirst[i]]);
  }
  for (int64_t step = 1; step <= 3; ++step) {
    const Intent intent = IntentFor(step);
    ASSERT_OK(store_->updates().Begin(intent, {BundleId(0)}));
    EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, intent, team_), IsOkAndHolds(true));
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (!intent.tensors[i].has_gradient) continue;
      const int64_t at = kFirst[i];
      UpdateElements(SettingsFor(intent, static_cast<int64_t>(i)),
                     {.param = &expected[at],
                      .grad = &grads_[at],
                      .exp_avg = &exp_avg[at],
                      .exp_avg_sq = &exp_avg_sq[at],
                      .new_param = &expected[at],
                      .new_exp_avg = &exp_avg[at],
                      .new_exp_avg_sq = &exp_avg_sq[at]},
                     counts_[i]);
    }
    EXPECT_EQ(store_->CommittedStep(BundleId(0)), step);
    EXPECT_EQ(Read(ChunkKind::kParam), expected);
    EXPECT_EQ(Read(ChunkKind::kExpAvg), exp_avg);
    if (HasSecondMoment(optimizer_)) {
      EXPECT_EQ(Read(ChunkKind::kExpAvgSq), exp_avg_sq);
    } else {
      EXPECT_FALSE(store_->HasPayload(ChunkOf(BundleId(0), ChunkKind::kExpAvgSq)));
    }
  }
  ASSERT_OK_AND_ASSIGN(const HostChunk param,
                       store_->Acquire(ChunkOf(BundleId(0), ChunkKind::kParam)));
  for (size_t i = 0; i < expected.size(); ++i) {
    uint32_t bits = 0;  // What models compute with.
    std::memcpy(&bits, param.data() + static_cast<int64_t>(i) * width_,
                static_cast<size_t>(width_));
    switch (element_) {
      case ElementType::kFp32:
        ASSERT_EQ(bits, std::bit_cast<uint32_t>(expected[i])) << i;
        break;
      case ElementType::kBf16:
        ASSERT_EQ(bits, SplitOf(expected[i]).high) << i;
        break;
      case ElementType::kFp16:
        ASSERT_EQ(bits, Fp16Of(expected[i])) << i;
        break;
    }
  }
}

// The squares that a trust ratio is made of are those of the whole tensor, wherever its elements
// lie.
TEST_P(BundleTrustTest, SquaresAreThoseOfEachTensorInOneRun) {
  const Intent first = IntentFor(1);
  ASSERT_OK(store_->updates().Begin(first, {BundleId(0)}));
  ASSERT_OK(UpdateBundle(*store_, BundleId(0), pieces_, first, team_));
  const Intent intent = IntentFor(2);
  std::vector<TrustSquares> squares(3);
  ASSERT_OK(
      AppendBundleTrust(*store_, BundleId(0), pieces_, intent, absl::MakeSpan(squares), team_));
  const std::vector<float> values = Read(ChunkKind::kParam);
  const std::vector<float> exp_avg = Read(ChunkKind::kExpAvg);
  std::vector<float> exp_avg_sq(values.size());
  if (HasSecondMoment(optimizer_)) exp_avg_sq = Read(ChunkKind::kExpAvgSq);
  for (size_t i = 0; i < counts_.size(); ++i) {
    TrustSquares expected;
    if (intent.tensors[i].has_gradient) {
      const int64_t at = kFirst[i];
      AppendTrustSquares(SettingsFor(intent, static_cast<int64_t>(i)),
                         {.param = &values[at],
                          .grad = &grads_[at],
                          .exp_avg = &exp_avg[at],
                          .exp_avg_sq = &exp_avg_sq[at]},
                         counts_[i], expected);
    }
    EXPECT_EQ(squares[i].param, expected.param) << i;
    EXPECT_EQ(squares[i].direction, expected.direction) << i;
  }
}

// Chunks somewhere else, as on DEVICE.
TEST_P(BundleTrustTest, InPlaceTheyAreTheSame) {
  const Intent first = IntentFor(1);
  ASSERT_OK(store_->updates().Begin(first, {BundleId(0)}));
  ASSERT_OK(UpdateBundle(*store_, BundleId(0), pieces_, first, team_));
  KindMap<std::vector<std::byte>> copies;
  BundleInPlace bundle = {.bundle = BundleId(0), .chunks = {}};
  for (const ChunkKind kind : TrainableKinds(format_)) {
    ASSERT_OK_AND_ASSIGN(const HostChunk chunk, store_->Acquire(ChunkOf(BundleId(0), kind)));
    copies[kind].assign(chunk.data(), chunk.data() + kChunkBytes);
    bundle.chunks[kind] = copies[kind].data();
  }
  const Intent intent = IntentFor(2);
  std::vector<TrustSquares> of_tensors(3);
  ASSERT_OK(
      AppendBundleTrust(*store_, BundleId(0), pieces_, intent, absl::MakeSpan(of_tensors), team_));
  TrustSquares expected;
  for (const TrustSquares& of_tensor : of_tensors) {
    std::ranges::copy(of_tensor.param, std::back_inserter(expected.param));
    std::ranges::copy(of_tensor.direction, std::back_inserter(expected.direction));
  }
  const std::vector<TrustRun> runs = TrustRunsOf(bundle, format_, kChunkBytes, pieces_, intent);
  DeviceKernelsHost kernels(team_);
  ASSERT_OK_AND_ASSIGN(const TrustSquares squares, kernels.TrustSquaresOf(runs));
  EXPECT_EQ(squares.param, expected.param);
  EXPECT_EQ(squares.direction, expected.direction);
}

TEST_P(BundleUpdateTest, WithoutAGradientOrWhenSkippedOnlyTheStepChanges) {
  Intent without = IntentFor(1);
  for (TensorIntent& tensor : without.tensors) tensor.has_gradient = false;
  ASSERT_OK(store_->updates().Begin(without, {BundleId(0)}));
  EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, without, team_), IsOkAndHolds(false));
  Intent skipped = IntentFor(2);
  skipped.skip = true;
  ASSERT_OK(store_->updates().Begin(skipped, {BundleId(0)}));
  EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, skipped, team_), IsOkAndHolds(false));
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), 2);
  EXPECT_EQ(Read(ChunkKind::kParam), values_);
  EXPECT_FALSE(store_->HasPayload(ChunkOf(BundleId(0), ChunkKind::kExpAvg)));
}

// Chunks somewhere else, as those in a DEVICE arena are, become the bytes that those in HOST do.
TEST_P(BundleUpdateTest, InPlaceItIsTheSame) {
  const Intent first = IntentFor(1);
  ASSERT_OK(store_->updates().Begin(first, {BundleId(0)}));
  ASSERT_OK(UpdateBundle(*store_, BundleId(0), pieces_, first, team_));
  const auto copy_of = [&](ChunkKind kind) {
    const HostChunk chunk = *store_->Acquire(ChunkOf(BundleId(0), kind));
    return std::vector<std::byte>(chunk.data(), chunk.data() + kChunkBytes);
  };
  KindMap<std::vector<std::byte>> copies;
  BundleInPlace bundle = {.bundle = BundleId(0), .chunks = {}};
  for (const ChunkKind kind : TrainableKinds(format_)) {
    copies[kind] = copy_of(kind);
    bundle.chunks[kind] = copies[kind].data();
  }
  const Intent intent = IntentFor(2);
  DeviceKernelsHost kernels(team_);
  UpdateInPlace(bundle, format_, kChunkBytes, pieces_, intent, kernels);
  ASSERT_OK(kernels.Finish());
  EXPECT_NE(copies[ChunkKind::kParam], copy_of(ChunkKind::kParam));
  ASSERT_OK(store_->updates().Begin(intent, {BundleId(0)}));
  ASSERT_OK(UpdateBundle(*store_, BundleId(0), pieces_, intent, team_));
  for (const ChunkKind kind : TrainableKinds(format_)) {
    EXPECT_EQ(copies[kind], copy_of(kind)) << ChunkKindName(kind);
  }
}

}  // namespace
}  // namespace gemini::client
