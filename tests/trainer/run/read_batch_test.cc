// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/read_batch.h"

#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/status_matchers.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

  std::string directory_;
};

torch::Tensor Ids(const std::vector<int64_t>& ids) {
  return torch::tensor(ids, torch::kInt64).view({-1, 3});
}

TEST_F(ReadBatchTest, RowsComeInTheOrderThatIsAskedForWithTheirLabels) {
  ASSERT_OK_AND_ASSIGN(const TokenBatch batch,
                       ReadBatch(OpenExamples(), {1, 0}, 2, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(batch.tokens, Ids({4, 5, 6, 1, 2, 3})));
  EXPECT_TRUE(torch::equal(batch.labels.values, Ids({-1, 5, 6, -1, -1, 3})));
  EXPECT_EQ(batch.labels.count, 3);
}

TEST_F(ReadBatchTest, NothingOfRowsThatFillABatchUpIsPredicted) {
  ASSERT_OK_AND_ASSIGN(const TokenBatch examples,
                       ReadBatch(OpenExamples(), {1, 1}, 1, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(examples.tokens, Ids({4, 5, 6, 4, 5, 6})));
  EXPECT_TRUE(torch::equal(examples.labels.values, Ids({-1, 5, 6, -1, -1, -1})));
  EXPECT_EQ(examples.labels.count, 2);
  ASSERT_OK_AND_ASSIGN(const TokenBatch text, ReadBatch(OpenText(), {1, 1}, 1, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(text.tokens, Ids({4, 5, 6, 4, 5, 6})));
  EXPECT_TRUE(torch::equal(text.labels.values, Ids({4, 5, 6, -1, -1, -1})));
  EXPECT_EQ(text.labels.count, 2);
}

TEST_F(ReadBatchTest, TheTokensOfATextAreItsLabels) {
  ASSERT_OK_AND_ASSIGN(const TokenBatch batch, ReadBatch(OpenText(), {0, 1}, 2, {}, torch::kCPU));
  EXPECT_TRUE(torch::equal(batch.tokens, Ids({1, 2, 3, 4, 5, 6})));
  EXPECT_EQ(batch.labels.values.const_data_ptr(), batch.tokens.const_data_ptr());
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
  ASSERT_OK_AND_ASSIGN(const TokenBatch batch,
                       ReadBatch(OpenExamples("pack"), {1, 0, 0}, 3, {}, torch::kCPU));
  ASSERT_NE(batch.documents, nullptr);
  EXPECT_THAT(batch.documents->lengths,
              ElementsAre(ElementsAre(3), ElementsAre(1, 2), ElementsAre(1, 2)));
  ASSERT_OK_AND_ASSIGN(const TokenBatch padded, ReadBatch(OpenExamples(), {0}, 1, {}, torch::kCPU));
  EXPECT_EQ(padded.documents, nullptr);
  ASSERT_OK_AND_ASSIGN(const TokenBatch text, ReadBatch(OpenText(), {0}, 1, {}, torch::kCPU));
  EXPECT_EQ(text.documents, nullptr);
}

TEST_F(ReadBatchTest, AnErrorOfTheDataIsReturned) {
  EXPECT_THAT(ReadBatch(OpenExamples(), {0, 2}, 2, {}, torch::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no row 2 of 2")));
}

}  // namespace
}  // namespace gemini::trainer
