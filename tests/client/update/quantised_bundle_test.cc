// SPDX-License-Identifier: Apache-2.0
// Updates of bundles whose moments are in 8 bits, against the arithmetic over whole tensors in
// plain memory.
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/kernels/element_values.h"
#include "client/kernels/moment_quantisation.h"
#include "client/kernels/trust_ratio.h"
#include "client/update/bundle_trust.h"
#include "client/update/bundle_update.h"
#include "gemini/byte_size.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 10;
constexpr std::array kThreads = {1, 2, 3, 5};
constexpr int64_t kBlock = kQuantisationBlockElements;
// Of tensor 1 before the bundle.
constexpr int64_t kElementsBefore = 30 * kBlock;

class QuantisedBundleTest
    : public SessionFixture,
      public ::testing::WithParamInterface<std::tuple<ElementType, OptimizerKind, int>> {
 protected:
  // Each begins at a block and ends inside one; the second and third go on where parts of threads
  // end. The second one's elements are in both halves of a bundle whose fp32 masters fill two
  // chunks.
  struct TestTensor {
    int64_t first = 0;
    int64_t count = 0;
    std::vector<float> param = {}, grad = {}, exp_avg = {}, exp_avg_sq = {};
    std::vector<uint8_t> codes[2] = {};
    std::vector<float> scales[2] = {};
  };

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
    const int64_t middle = element_ == ElementType::kFp32 ? 36'000 : 70'000;
    const int64_t last = RoundUp(2 * kBlock + middle, kBlock);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>(0, 3000), std::pair(2 * kBlock, middle),
          std::pair<int64_t, int64_t>(last, 20'000)}) {
      pieces_.push_back({.tensor = static_cast<int64_t>(tensors_.size()),
                         .chunk_offset_bytes = first * width_,
                         .tensor_offset_bytes = tensors_.size() == 1 ? kElementsBefore * width_ : 0,
                         .size_bytes = count * width_});
      tensors_.push_back({.first = first, .count = count});
      ASSERT_LE(first + count, num_elements_);
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
  std::vector<float> PartOf(const std::vector<float>& values, const TestTensor& tensor) const {
    return {values.begin() + tensor.first, values.begin() + tensor.first + tensor.count};
  }

  void CommitRandomParameters() {
    const std::vector<float> values = RandomValues();
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    ValueChunks to = {.format = format_, .chunk_bytes = kChunkBytes};
    for (const ChunkKind kind : KindsOfValue(format_, ChunkKind::kParam)) {
      ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
      to.chunks.push_back(spare.data());
      fresh.emplace_back(kind, std::move(spare));
    }
    StoreValues(to, 0, values);
    ASSERT_OK(store_->Commit(BundleId(0), 0, absl::MakeSpan(fresh)));
    for (TestTensor& tensor : tensors_) {
      tensor.param = PartOf(values, tensor);
      tensor.exp_avg.resize(tensor.param.size());
      tensor.exp_avg_sq.resize(tensor.param.size());
    }
  }

  void WriteRandomGradients() {
    std::vector<float> grads = RandomValues();
    ASSERT_OK_AND_ASSIGN(const HostChunk grad,
                         store_->AcquireToOverwrite(ChunkOf(BundleId(0), ChunkKind::kGrad)));
    const ValueChunks at = {.format = format_,
                            .value = ChunkKind::kGrad,
                            .chunk_bytes = kChunkBytes,
                            .chunks = {grad.data()}};
    StoreValues(at, 0, grads);
    LoadValues(at, 0, absl::MakeSpan(grads));  // As rounded to the format.
    for (TestTensor& tensor : tensors_) tensor.grad = PartOf(grads, tensor);
  }

  // The third tensor has a gradient at even steps alone.
  Intent IntentFor(int64_t step, uint64_t rounding_seed) const {
    return {.step = step,
            .learning_rate = 0.1,
            .beta1 = 0.9,
            .beta2 = 0.99,
            .epsilon = 1e-6,
            .weight_decay = 0.1,
            .gradient_scale = 0.5,
            .optimizer = optimizer_,
            .momentum = 0.75,
            .rounding_seed = rounding_seed,
            .tensors = {{true, true, step, 0.25},
                        {true, false, step + 4, 2},
                        {step % 2 == 0, true, step / 2, 1}}};
  }

  void Expect(const Intent& intent) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      TestTensor& tensor = tensors_[i];
      if (!intent.tensors[i].has_gradient) continue;
      UpdateElements(SettingsOf(intent, static_cast<int64_t>(i)),
                     {.param = tensor.param.data(),
                      .grad = tensor.grad.data(),
                      .exp_avg = tensor.exp_avg.data(),
                      .exp_avg_sq = tensor.exp_avg_sq.data(),
                      .new_param = tensor.param.data(),
                      .new_exp_avg = tensor.exp_avg.data(),
                      .new_exp_avg_sq = tensor.exp_avg_sq.data()},
                     tensor.count);
      const StochasticRounding stochastic = {.seed = intent.rounding_seed + i,
                                             .step = intent.tensors[i].step};
      for (int moment = 0; moment < NumMoments(format_); ++moment) {
        std::vector<float>& values = moment == 0 ? tensor.exp_avg : tensor.exp_avg_sq;
        const MomentCode code = moment == 0 ? MomentCode::kSigned : MomentCode::kUnsigned;
        tensor.codes[moment].resize(values.size());
        tensor.scales[moment].resize(static_cast<size_t>(RoundUp(tensor.count, kBlock) / kBlock));
        QuantiseMoment(code, values.data(), i == 1 ? kElementsBefore : 0, tensor.count,
                       intent.rounding_seed == 0 ? nullptr : &stochastic,
                       tensor.codes[moment].data(), tensor.scales[moment].data());
        DequantiseMoment(code, tensor.codes[moment].data(), tensor.scales[moment].data(),
                         tensor.count, values.data());
      }
    }
  }

  // All bytes of the chunk of moments that have a meaning; zero where no tensor is.
  std::vector<std::byte> ExpectedMoments() const {
    const QuantisedMomentsChunk place = QuantisedMomentsOf(format_, kChunkBytes);
    std::vector<std::byte> bytes(static_cast<size_t>(place.size_bytes()));
    for (const TestTensor& tensor : tensors_) {
      for (int moment = 0; moment < NumMoments(format_); ++moment) {
        const ChunkKind kind = moment == 0 ? ChunkKind::kExpAvg : ChunkKind::kExpAvgSq;
        const auto& scales = tensor.scales[moment];
        if (scales.empty()) continue;
        std::memcpy(&bytes[place.codes_offset(kind) + tensor.first], tensor.codes[moment].data(),
                    tensor.codes[moment].size());
        std::memcpy(&bytes[place.scales_offset(kind) + tensor.first / kBlock * 4], scales.data(),
                    scales.size() * sizeof(float));
      }
    }
    return bytes;
  }

  // The fp32 values of a tensor's state.
  std::vector<float> Read(ChunkKind value, const TestTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.count));
    std::vector<HostChunk> held;
    ValueChunks from = {.format = format_, .value = value, .chunk_bytes = kChunkBytes};
    for (const ChunkKind kind : KindsOfValue(format_, value)) {
      auto chunk = store_->Acquire(ChunkOf(BundleId(0), kind));
      EXPECT_OK(chunk);
      if (!chunk.ok()) return values;
      from.chunks.push_back(chunk->data());
      held.push_back(*std::move(chunk));
    }
    LoadValues(from, tensor.first, absl::MakeSpan(values));
    return values;
  }

  void RunSteps(uint64_t rounding_seed) {
    for (int64_t step = 1; step <= 3; ++step) {
      const Intent intent = IntentFor(step, rounding_seed);
      ASSERT_OK(store_->updates().Begin(intent, {BundleId(0)}));
      EXPECT_THAT(UpdateBundle(*store_, BundleId(0), pieces_, intent, team_), IsOkAndHolds(true));
      Expect(intent);
      for (const TestTensor& tensor : tensors_) {
        ASSERT_EQ(Read(ChunkKind::kParam, tensor), tensor.param);
        ASSERT_EQ(Read(ChunkKind::kExpAvg, tensor), tensor.exp_avg);
        if (NumMoments(format_) < 2) continue;
        ASSERT_EQ(Read(ChunkKind::kExpAvgSq, tensor), tensor.exp_avg_sq);
      }
      ASSERT_OK_AND_ASSIGN(const HostChunk moments,
                           store_->Acquire(ChunkOf(BundleId(0), ChunkKind::kExpAvg)));
      const std::vector<std::byte> expected = ExpectedMoments();
      ASSERT_EQ(std::memcmp(moments.data(), expected.data(), expected.size()), 0);
    }
    EXPECT_FALSE(store_->HasPayload(ChunkOf(BundleId(0), ChunkKind::kExpAvgSq)));
  }

  const ElementType element_ = std::get<ElementType>(GetParam());
  const OptimizerKind optimizer_ = std::get<OptimizerKind>(GetParam());
  const StateFormat format_ = {
      .element = element_, .optimizer = optimizer_, .moments = MomentFormat::k8Bit};
  const int64_t width_ = ElementBytes(element_);
  WorkerTeam team_{std::get<int>(GetParam())};
  const int64_t num_elements_ = PayloadBytes(format_, kChunkBytes) / width_;
  std::mt19937_64 random_{3};
  ChunkStore* store_ = nullptr;
  std::vector<TensorPiece> pieces_;
  std::vector<TestTensor> tensors_;
};

INSTANTIATE_TEST_SUITE_P(Formats, QuantisedBundleTest,
                         ::testing::Combine(::testing::ValuesIn(kAllElementTypes),
                                            ::testing::ValuesIn(kAllOptimizerKinds),
                                            ::testing::ValuesIn(kThreads)),
                         [](const auto& test) {
                           return absl::StrCat(ElementTypeName(std::get<0>(test.param)), "_",
                                               OptimizerKindName(std::get<1>(test.param)), "_",
                                               std::get<2>(test.param), "_threads");
                         });

TEST_P(QuantisedBundleTest, UpdatesTheTensorsWithAGradientAndKeepsTheOthers) {
  RunSteps(/*rounding_seed=*/0);
}

TEST_P(QuantisedBundleTest, RoundingAtRandomGoesByTheElementOfTheTensor) {
  RunSteps(/*rounding_seed=*/77);
}

// Values that were read from codes become the same codes again: a saved run goes on with the same
// bits.
TEST_P(QuantisedBundleTest, WrittenValuesAreTheCodesThatTheyWereReadFrom) {
  RunSteps(/*rounding_seed=*/77);
  ASSERT_OK_AND_ASSIGN(const HostChunk moments,
                       store_->Acquire(ChunkOf(BundleId(0), ChunkKind::kExpAvg)));
  std::vector<std::byte> copy(kChunkBytes);
  for (const ChunkKind value : {ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
    if (KindsOfValue(format_, value).size() == 0) continue;
    const ValueChunks to = {
        .format = format_, .value = value, .chunk_bytes = kChunkBytes, .chunks = {copy.data()}};
    for (const TestTensor& tensor : tensors_) {
      StoreValues(to, tensor.first, Read(value, tensor));
    }
  }
  const int64_t size = QuantisedMomentsOf(format_, kChunkBytes).size_bytes();
  EXPECT_EQ(std::memcmp(copy.data(), moments.data(), static_cast<size_t>(size)), 0);
}

TEST_P(QuantisedBundleTest, TrustSquaresAreOfTheDequantisedMoments) {
  if (!IsLayerWise(optimizer_)) return;
  RunSteps(/*rounding_seed=*/0);
  const Intent intent = IntentFor(4, 0);
  std::vector<TrustSquares> squares(3);
  ASSERT_OK(
      AppendBundleTrust(*store_, BundleId(0), pieces_, intent, absl::MakeSpan(squares), team_));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TrustSquares expected;
    AppendTrustSquares(SettingsOf(intent, static_cast<int64_t>(i)),
                       {.param = tensors_[i].param.data(),
                        .grad = tensors_[i].grad.data(),
                        .exp_avg = tensors_[i].exp_avg.data(),
                        .exp_avg_sq = tensors_[i].exp_avg_sq.data()},
                       tensors_[i].count, expected);
    EXPECT_EQ(squares[i].param, expected.param) << i;
    EXPECT_EQ(squares[i].direction, expected.direction) << i;
  }
}

}  // namespace
}  // namespace gemini::client
