// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/read_batch.h"

#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/tasks/masking.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 1000;

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

class ReadBatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "read_batch_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Two rows of three tokens: 1 to 6, of which 3, 5 and 6 are answers. Packed, the first row has
  // two documents.
  TrainingData OpenExamples(const std::string& layout = "pad") {
    const std::string path = directory_ + "/chats.safetensors";
    auto writer = SafetensorsWriter::Create(path,
                                            {{"tokens", SafetensorsDtype::kI32, {2, 3}},
                                             {"documents", SafetensorsDtype::kI32, {2, 3}},
                                             {"answers", SafetensorsDtype::kU8, {2, 3}}},
                                            {{"gemini.format", "1"},
                                             {"task", "causal"},
                                             {"rows", "2"},
                                             {"sequence", "3"},
                                             {"layout", layout}});
    const int32_t second = layout == "pack" ? 2 : 1;
    const std::vector<int32_t> values = {1, 2, 3, 4, 5, 6, 1, second, second, 1, 1, 1};
    const std::vector<uint8_t> answers = {0, 0, 1, 0, 1, 1};
    EXPECT_OK(writer->AppendRaw(
        {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(int32_t)}));
    EXPECT_OK(
        writer->AppendRaw({reinterpret_cast<const std::byte*>(answers.data()), answers.size()}));
    EXPECT_OK(writer->Finish());
    TrainingData data = *TrainingData::Open(path, 3);
    EXPECT_OK(data.CheckRows({.vocab_size = 10}, /*sees_padding=*/false));
    return data;
  }
  // Two rows of three tokens: 1 to 6.
  TrainingData OpenText() {
    const std::string path = directory_ + "/text.npy";
    const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (6,), }\n";
    std::ofstream(path, std::ios::binary)
        << "\x93NUMPY" << '\x01' << '\x00' << static_cast<char>(header.size()) << '\x00' << header
        << std::string("\1\0\2\0\3\0\4\0\5\0\6\0", 12);
    return *TrainingData::Open(path, 3);
  }

  // Writes a file of these tensors, whose elements are those of `values` in one row after another.
  std::string WriteRows(std::map<std::string, std::string> metadata,
                        const std::vector<SafetensorsWriter::Declaration>& tensors,
                        const std::vector<std::vector<std::byte>>& values) const {
    const std::string path = directory_ + "/rows.safetensors";
    metadata.insert({{"gemini.format", "1"}, {"layout", "pad"}});
    auto writer = SafetensorsWriter::Create(path, tensors, metadata);
    for (const std::vector<std::byte>& bytes : values) EXPECT_OK(writer->AppendRaw(bytes));
    EXPECT_OK(writer->Finish());
    return path;
  }
  // Three rows of 40 tokens, each of another token: 10, 11 and 12. The first and the last of a row
  // are never hidden.
  TrainingData OpenMasked() {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> answers;
    for (int32_t row = 0; row < 3; ++row) {
      for (int32_t i = 0; i < 40; ++i) {
        tokens.push_back(10 + row);
        answers.push_back(i > 0 && i < 39 ? 1 : 0);
      }
    }
    const std::vector<int64_t> shape = {3, 40};
    TrainingData data = *TrainingData::Open(
        WriteRows({{"task", "masked"}, {"rows", "3"}, {"sequence", "40"}, {"mask_token", "9"}},
                  {{"tokens", SafetensorsDtype::kI32, shape},
                   {"documents", SafetensorsDtype::kI32, shape},
                   {"answers", SafetensorsDtype::kU8, shape}},
                  {Bytes(tokens), Bytes(std::vector<int32_t>(120, 1)), Bytes(answers)}),
        3);
    EXPECT_OK(data.CheckRows({.vocab_size = kVocabulary}, /*sees_padding=*/true));
    return data;
  }
  // Two rows of three tokens, 1 to 6, the first with a token of padding.
  TrainingData OpenLabeled(const std::string& problem, SafetensorsDtype dtype,
                           const std::vector<int64_t>& shape, const std::vector<std::byte>& labels,
                           const std::vector<uint8_t>& types = {}) {
    std::vector<SafetensorsWriter::Declaration> tensors = {
        {"tokens", SafetensorsDtype::kI32, {2, 3}},
        {"documents", SafetensorsDtype::kI32, {2, 3}},
        {"labels", dtype, shape}};
    std::vector<std::vector<std::byte>> values = {Bytes(std::vector<int32_t>{1, 2, 3, 4, 5, 6}),
                                                  Bytes(std::vector<int32_t>{1, 1, 0, 1, 1, 1}),
                                                  labels};
    if (!types.empty()) {
      tensors.push_back({"types", SafetensorsDtype::kU8, {2, 3}});
      values.push_back(Bytes(types));
    }
    TrainingData data = *TrainingData::Open(WriteRows({{"task", "sequence-classification"},
                                                       {"rows", "2"},
                                                       {"sequence", "3"},
                                                       {"problem_type", problem},
                                                       {"num_labels", "2"},
                                                       {"names", ""}},
                                                      tensors, values),
                                            3);
    EXPECT_OK(data.CheckRows({.vocab_size = 10, .num_token_types = 2, .task = data.task()},
                             /*sees_padding=*/true));
    return data;
  }

  std::string directory_;
};

torch::Tensor Ids(const std::vector<int64_t>& ids) {
  return torch::tensor(ids, torch::kInt64).view({-1, 3});
}

TEST_F(ReadBatchTest, RowsComeInTheOrderThatIsAskedForWithTheirLabels) {
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(OpenExamples(), {1, 0}, 2, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(batch.inputs, Ids({4, 5, 6, 1, 2, 3})));
  EXPECT_TRUE(torch::equal(batch.labels.values, Ids({-1, 5, 6, -1, -1, 3})));
  EXPECT_EQ(batch.labels.count, 3);
}

TEST_F(ReadBatchTest, NothingOfRowsThatFillABatchUpIsPredicted) {
  ASSERT_OK_AND_ASSIGN(const Batch examples, ReadBatch(OpenExamples(), {1, 1}, 1, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(examples.inputs, Ids({4, 5, 6, 4, 5, 6})));
  EXPECT_TRUE(torch::equal(examples.labels.values, Ids({-1, 5, 6, -1, -1, -1})));
  EXPECT_EQ(examples.labels.count, 2);
  ASSERT_OK_AND_ASSIGN(const Batch text, ReadBatch(OpenText(), {1, 1}, 1, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(text.inputs, Ids({4, 5, 6, 4, 5, 6})));
  EXPECT_TRUE(torch::equal(text.labels.values, Ids({4, 5, 6, -1, -1, -1})));
  EXPECT_EQ(text.labels.count, 2);
}

TEST_F(ReadBatchTest, TheTokensOfATextAreItsLabels) {
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(OpenText(), {0, 1}, 2, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(batch.inputs, Ids({1, 2, 3, 4, 5, 6})));
  EXPECT_EQ(batch.labels.values.const_data_ptr(), batch.inputs.const_data_ptr());
  EXPECT_EQ(batch.labels.count, 4);
}

TEST_F(ReadBatchTest, LabelsStayWhenTheFileIsClosed) {
  torch::Tensor labels;
  {
    const TrainingData data = OpenExamples();
    labels = ReadBatch(data, {0}, 1, {}, torch::kCPU)->labels.values;
  }
  EXPECT_TRUE(torch::equal(labels, Ids({-1, -1, 3})));
}

TEST_F(ReadBatchTest, PackedRowsHaveTheirDocuments) {
  ASSERT_OK_AND_ASSIGN(const Batch batch,
                       ReadBatch(OpenExamples("pack"), {1, 0, 0}, 3, {}, torch::kCPU));
  ASSERT_NE(batch.documents, nullptr);
  EXPECT_THAT(batch.documents->lengths,
              ElementsAre(ElementsAre(3), ElementsAre(1, 2), ElementsAre(1, 2)));
  ASSERT_OK_AND_ASSIGN(const Batch padded, ReadBatch(OpenExamples(), {0}, 1, {}, torch::kCPU));
  EXPECT_EQ(padded.documents, nullptr);
  ASSERT_OK_AND_ASSIGN(const Batch text, ReadBatch(OpenText(), {0}, 1, {}, torch::kCPU));
  EXPECT_EQ(text.documents, nullptr);
}

// The draws are those of a row's place in the run, and not of its place in the file.
TEST_F(ReadBatchTest, MasksFollowThePlaceOfTheFirstRow) {
  const TrainingData data = OpenMasked();
  for (const bool is_evaluation : {false, true}) {
    const RowMasks masks = {
        .seed = 7, .vocab_size = kVocabulary, .first_row = 5, .is_evaluation = is_evaluation};
    ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {2, 0}, 2, masks, torch::kCPU));
    int64_t count = 0;
    for (const int64_t i : {0, 1}) {
      const int64_t token = i == 0 ? 12 : 10;
      std::vector<int64_t> tokens(40, token), labels(40, token);
      labels.front() = labels.back() = -1;
      count += MaskTokensOfRow({7, 5 + i, is_evaluation}, {9, kVocabulary}, absl::MakeSpan(tokens),
                               absl::MakeSpan(labels));
      EXPECT_TRUE(torch::equal(batch.inputs[i], torch::tensor(tokens, torch::kInt64)));
      EXPECT_TRUE(torch::equal(batch.labels.values[i], torch::tensor(labels, torch::kInt64)));
    }
    EXPECT_EQ(batch.labels.count, count);
    EXPECT_EQ(batch.documents, nullptr);
  }
}

TEST_F(ReadBatchTest, MicroBatchesHideWhatOneBatchDoes) {
  const TrainingData data = OpenMasked();
  RowMasks masks = {.seed = 3, .vocab_size = kVocabulary, .first_row = 8};
  ASSERT_OK_AND_ASSIGN(const Batch whole, ReadBatch(data, {0, 1, 2}, 3, masks, torch::kCPU));
  for (const int64_t row : {0, 1, 2}) {
    masks.first_row = 8 + row;
    ASSERT_OK_AND_ASSIGN(const Batch one, ReadBatch(data, {row}, 1, masks, torch::kCPU));
    EXPECT_TRUE(torch::equal(one.inputs[0], whole.inputs[row]));
    EXPECT_TRUE(torch::equal(one.labels.values[0], whole.labels.values[row]));
  }
}

TEST_F(ReadBatchTest, HiddenTokensAreCountedWithoutABatch) {
  const TrainingData data = OpenMasked();
  for (int64_t first = 0; first < 20; ++first) {
    RowMasks masks = {.seed = 3, .vocab_size = kVocabulary, .first_row = first};
    ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0, 2}, 2, masks, torch::kCPU));
    EXPECT_EQ(batch.labels.values.ge(0).sum().item<int64_t>(), batch.labels.count);
    EXPECT_EQ(batch.labels.values[2].max().item<int64_t>(), -1);
    ASSERT_OK_AND_ASSIGN(const int64_t of_first, CountLabels(data, 1, masks));
    ++masks.first_row;
    ASSERT_OK_AND_ASSIGN(const int64_t of_second, CountLabels(data, 0, masks));
    EXPECT_EQ(batch.labels.count, of_first + of_second);
    EXPECT_GT(of_first, 0);
  }
}

TEST_F(ReadBatchTest, ClassesComeAsWholeNumbersOfTheirRows) {
  const TrainingData data = OpenLabeled("single_label_classification", SafetensorsDtype::kI32, {2},
                                        Bytes(std::vector<int32_t>{0, 1}));
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0, 1}, 3, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(batch.inputs, Ids({4, 5, 6, 1, 2, 3, 4, 5, 6})));
  EXPECT_TRUE(torch::equal(batch.labels.values, torch::tensor({1, 0, 1}, torch::kInt64)));
  EXPECT_EQ(batch.labels.count, 3);
  EXPECT_FALSE(batch.types.defined());
  ASSERT_NE(batch.documents, nullptr);
  EXPECT_THAT(batch.documents->lengths,
              ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(3)));
  ASSERT_OK_AND_ASSIGN(const Batch filled, ReadBatch(data, {1, 0, 1}, 1, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(filled.labels.values, torch::tensor({1, -1, -1}, torch::kInt64)));
  EXPECT_EQ(filled.labels.count, 1);
  EXPECT_THAT(CountLabels(data, 0, {}), IsOkAndHolds(1));
}

TEST_F(ReadBatchTest, NumbersComeInFp32AndNoneAreOfRowsThatFillUp) {
  for (const char* problem : {"multi_label_classification", "regression"}) {
    const TrainingData data =
        OpenLabeled(problem, SafetensorsDtype::kF32, {2, 2}, Bytes(std::vector<float>{1, 0, 0, 1}));
    ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0}, 2, {}, torch::kCPU));
    EXPECT_TRUE(
        torch::equal(batch.labels.values, torch::tensor({0.f, 1.f, 1.f, 0.f}).view({2, 2})));
    EXPECT_EQ(batch.labels.count, 4);
    ASSERT_OK_AND_ASSIGN(const Batch filled, ReadBatch(data, {1, 0}, 1, {}, torch::kCPU));
    EXPECT_TRUE(torch::equal(filled.labels.values[0], torch::tensor({0.f, 1.f})));
    EXPECT_TRUE(filled.labels.values[1].isnan().all().item<bool>());
    EXPECT_EQ(filled.labels.count, 2);
    EXPECT_THAT(CountLabels(data, 0, {}), IsOkAndHolds(2));
  }
}

TEST_F(ReadBatchTest, TypesComeWithTheirTokens) {
  torch::Tensor types, labels;
  {
    const TrainingData data =
        OpenLabeled("single_label_classification", SafetensorsDtype::kI32, {2},
                    Bytes(std::vector<int32_t>{0, 1}), {0, 1, 0, 0, 0, 1});
    ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0}, 1, {}, torch::kCPU));
    types = batch.types;
    labels = batch.labels.values;
  }
  EXPECT_TRUE(torch::equal(types, Ids({0, 0, 1, 0, 1, 0})));
  EXPECT_TRUE(torch::equal(labels, torch::tensor({1, -1}, torch::kInt64)));
}

TEST_F(ReadBatchTest, ImagesComeAsPixelsWithTheirLabels) {
  TrainingData data = *TrainingData::Open(
      WriteRows({{"task", "image-classification"},
                 {"rows", "2"},
                 {"problem_type", "single_label_classification"},
                 {"num_labels", "2"},
                 {"names", ""},
                 {"rescale", "0.5"},
                 {"mean", "[1]"},
                 {"std", "[1]"}},
                {{"labels", SafetensorsDtype::kI32, {2}},
                 {"pixels", SafetensorsDtype::kU8, {2, 1, 2, 1}}},
                {Bytes(std::vector<int32_t>{1, 0}), Bytes(std::vector<uint8_t>{2, 4, 6, 8})}),
      3);
  ASSERT_OK(data.CheckRows(
      {.image = ImageSpec{.channels = 1, .height = 2, .width = 1}, .task = data.task()},
      /*sees_padding=*/true));
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0, 0}, 2, {}, torch::kCPU));
  EXPECT_TRUE(
      torch::equal(batch.inputs, torch::tensor({2.f, 3.f, 0.f, 1.f, 0.f, 1.f}).view({3, 1, 2, 1})));
  EXPECT_TRUE(torch::equal(batch.labels.values, torch::tensor({0, 1, -1}, torch::kInt64)));
  EXPECT_EQ(batch.labels.count, 2);
  EXPECT_EQ(batch.documents, nullptr);
  EXPECT_THAT(CountLabels(data, 0, {}), IsOkAndHolds(1));
}

TEST_F(ReadBatchTest, AlignmentsAreHiddenAsRowsAre) {
  std::vector<int32_t> tokens(2 * 3 * 40);
  std::iota(tokens.begin(), tokens.end(), 0);
  TrainingData data =
      *TrainingData::Open(WriteRows({{"task", "masked"},
                                     {"rows", "2"},
                                     {"sequences", "3"},
                                     {"residues", "40"},
                                     {"mask_token", "249"}},
                                    {{"tokens", SafetensorsDtype::kI32, {2, 3, 40}},
                                     {"answers", SafetensorsDtype::kU8, {2, 3, 40}}},
                                    {Bytes(tokens), Bytes(std::vector<uint8_t>(tokens.size(), 1))}),
                          3);
  ASSERT_OK(data.CheckRows({.vocab_size = 250, .num_sequences = 3}, /*sees_padding=*/true));
  EXPECT_EQ(data.sequence_tokens(), 40);
  const RowMasks masks = {.seed = 5, .vocab_size = 250, .first_row = 7};
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0}, 1, masks, torch::kCPU));
  ASSERT_EQ(batch.inputs.sizes(), at::IntArrayRef({2, 3, 40}));
  ASSERT_EQ(batch.labels.values.sizes(), batch.inputs.sizes());
  std::vector<int64_t> hidden(120), labels(120);
  std::iota(hidden.begin(), hidden.end(), 120);
  labels = hidden;
  const int64_t count =
      MaskTokensOfRow({5, 7, false}, {249, 250}, absl::MakeSpan(hidden), absl::MakeSpan(labels));
  EXPECT_TRUE(torch::equal(batch.inputs[0].flatten(), torch::tensor(hidden)));
  EXPECT_TRUE(torch::equal(batch.labels.values[0].flatten(), torch::tensor(labels)));
  EXPECT_TRUE(torch::equal(batch.labels.values[1], torch::full({3, 40}, -1, torch::kInt64)));
  EXPECT_EQ(batch.labels.count, count);
  EXPECT_THAT(CountLabels(data, 1, masks), IsOkAndHolds(count));
}

TEST_F(ReadBatchTest, DistogramsComeWithTheBinsOfTheirPairs) {
  TrainingData data =
      *TrainingData::Open(WriteRows({{"task", "distogram"},
                                     {"rows", "2"},
                                     {"sequences", "1"},
                                     {"residues", "2"},
                                     {"num_bins", "4"}},
                                    {{"tokens", SafetensorsDtype::kI32, {2, 1, 2}},
                                     {"labels", SafetensorsDtype::kI32, {2, 2, 2}}},
                                    {Bytes(std::vector<int32_t>{1, 2, 3, 4}),
                                     Bytes(std::vector<int32_t>{0, 1, 2, 3, -1, -1, 3, -1})}),
                          3);
  ASSERT_OK(data.CheckRows({.vocab_size = 5, .num_sequences = 1}, /*sees_padding=*/true));
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(data, {1, 0, 0}, 2, {}, torch::kCPU));
  EXPECT_TRUE(
      torch::equal(batch.inputs, torch::tensor({3, 4, 1, 2, 1, 2}, torch::kInt64).view({3, 1, 2})));
  EXPECT_TRUE(torch::equal(
      batch.labels.values,
      torch::tensor({-1, -1, 3, -1, 0, 1, 2, 3, -1, -1, -1, -1}, torch::kInt64).view({3, 2, 2})));
  EXPECT_EQ(batch.labels.count, 5);
  EXPECT_EQ(batch.documents, nullptr);
  EXPECT_THAT(CountLabels(data, 0, {}), IsOkAndHolds(4));
  EXPECT_THAT(CountLabels(data, 1, {}), IsOkAndHolds(1));
}

TEST_F(ReadBatchTest, AnErrorOfTheDataIsReturned) {
  EXPECT_THAT(ReadBatch(OpenExamples(), {0, 2}, 2, {}, torch::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no row 2 of 2")));
}

}  // namespace
}  // namespace gemini::trainer
