// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/step_batches.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gemini/files/safetensors_format.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kSequence = 4, kRows = 12, kVocabulary = 1000;

class StepBatchesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "step_batches_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    // Row i has i in all its places.
    std::ofstream text(directory_ + "/text.npy", std::ios::binary);
    const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (48,), }\n";
    text << "\x93NUMPY" << '\x01' << '\x00' << static_cast<char>(header.size()) << '\x00' << header;
    for (int64_t i = 0; i < kRows * kSequence; ++i) {
      text << static_cast<char>(i / kSequence) << '\x00';
    }
    text.close();
    ASSERT_OK_AND_ASSIGN(TrainingData data,
                         TrainingData::Open(directory_ + "/text.npy", kSequence));
    data_.emplace(std::move(data));
    config_.batch = 2;
    config_.accumulate = 2;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  StepBatches Make(const DataPart& part) const {
    return {config_, *data_, kVocabulary, part, torch::kCPU};
  }
  // The rows of all of a rank's micro-batches.
  std::vector<int64_t> RowsOf(const StepBatches& batches, const StepNumbers& step) const {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < config_.accumulate; ++i) {
      const auto batch = batches.Read(step, i);
      EXPECT_OK(batch);
      for (int64_t row = 0; row < batch->inputs.size(0); ++row) {
        rows.push_back(batch->inputs[row][0].item<int64_t>());
      }
    }
    return rows;
  }

  std::string directory_;
  RunConfig config_;
  std::optional<TrainingData> data_;
};

TEST_F(StepBatchesTest, RanksDivideWhatOneWouldReadInItsOrder) {
  for (const std::string order : {"sequential", "shuffled"}) {
    config_.order = order;
    config_.accumulate = 6;
    std::vector<int64_t> whole = RowsOf(Make({}), {});
    config_.accumulate = 2;
    std::vector<int64_t> parts;
    for (int64_t rank = 0; rank < 3; ++rank) {
      const StepBatches batches = Make({.index = rank, .count = 3});
      EXPECT_EQ(batches.num_micro_batches(), 6);
      EXPECT_EQ(batches.num_sequences(), 12);
      for (const int64_t row : RowsOf(batches, {})) parts.push_back(row);
    }
    EXPECT_EQ(parts, whole);
    std::ranges::sort(parts);
    for (int64_t i = 0; i < kRows; ++i) EXPECT_EQ(parts[static_cast<size_t>(i)], i);
  }
}

TEST_F(StepBatchesTest, TheNumbersOfAStepSayWhatItReadsAndDraws) {
  const StepBatches batches = Make({.index = 1, .count = 2});
  const StepNumbers second = {.step = 1, .sequences_taken = 8};
  EXPECT_EQ(RowsOf(batches, second), RowsOf(batches, second));
  EXPECT_NE(RowsOf(batches, second), RowsOf(batches, {}));
  const DropoutDraw draw = batches.DrawOf(second, 1);
  EXPECT_EQ(draw.seed, 42);
  EXPECT_EQ(draw.step, 1);
  EXPECT_EQ(draw.micro_batch, 3);  // Of all ranks'.
}

// Row i has i + 1 answers.
TEST_F(StepBatchesTest, LabelsOfAStepAreThoseOfAllRanks) {
  constexpr int64_t kAnswered = 8, kTokens = 9;
  const std::string path = directory_ + "/answers.safetensors";
  auto writer =
      SafetensorsWriter::Create(path,
                                {{"tokens", SafetensorsDtype::kI32, {kAnswered, kTokens}},
                                 {"documents", SafetensorsDtype::kI32, {kAnswered, kTokens}},
                                 {"answers", SafetensorsDtype::kU8, {kAnswered, kTokens}}},
                                {{"gemini.format", "1"},
                                 {"task", "causal"},
                                 {"rows", "8"},
                                 {"sequence", "9"},
                                 {"layout", "pad"}});
  const std::vector<int32_t> ones(2 * kAnswered * kTokens, 1);
  std::vector<uint8_t> answers(kAnswered * kTokens, 0);
  for (int64_t row = 0; row < kAnswered; ++row) {
    for (int64_t i = 0; i <= row; ++i)
      answers[static_cast<size_t>((row + 1) * kTokens - 1 - i)] = 1;
  }
  ASSERT_OK(writer->AppendRaw(std::as_bytes(std::span(ones))));
  ASSERT_OK(writer->AppendRaw(std::as_bytes(std::span(answers))));
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(TrainingData data, TrainingData::Open(path, kTokens));
  ASSERT_OK(data.CheckRows({.vocab_size = 10}, /*sees_padding=*/false));
  data_.emplace(std::move(data));
  config_.order = "sequential";
  config_.batch = 1;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const StepBatches batches = Make({.index = rank, .count = 2});
    EXPECT_FALSE(batches.counts_own());
    EXPECT_EQ(batches.num_counted(), 4);
    EXPECT_THAT(batches.CountLabels({}), IsOkAndHolds(1 + 2 + 3 + 4));
    EXPECT_THAT(batches.CountLabels({.step = 1, .sequences_taken = 4}),
                IsOkAndHolds(5 + 6 + 7 + 8));
  }
}

}  // namespace
}  // namespace gemini::trainer
