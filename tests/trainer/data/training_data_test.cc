// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/training_data.h"

#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TrainingDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "training_data_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(TrainingDataTest, EachTokenOfATextIsItsLabel) {
  const std::string path = directory_ + "/text.npy";
  const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }\n";
  std::ofstream(path, std::ios::binary)
      << "\x93NUMPY" << '\x01' << '\x00' << static_cast<char>(header.size()) << '\x00' << header
      << std::string("\1\0\2\0\3\0\4\0\5\0\6\0\7\0", 14);
  ASSERT_OK_AND_ASSIGN(TrainingData data, TrainingData::Open(path, 3));
  EXPECT_EQ(data.examples(), nullptr);
  EXPECT_EQ(data.labeled(), nullptr);
  EXPECT_EQ(data.num_sequences(), 2);
  EXPECT_EQ(data.sequence_tokens(), 3);
  std::vector<int64_t> tokens(3);
  ASSERT_OK(data.text().Read(1, absl::MakeSpan(tokens)));
  EXPECT_THAT(tokens, ElementsAre(4, 5, 6));
  EXPECT_OK(data.Fingerprint());
  EXPECT_OK(data.CheckRows({.vocab_size = 7}, /*sees_padding=*/false));
  EXPECT_THAT(data.CheckRows({.vocab_size = 6}, /*sees_padding=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token 6 at position 5")));
}

TEST_F(TrainingDataTest, RowsOfExamplesHaveALengthAndLabelsOfTheirOwn) {
  const std::string path = directory_ + "/chats.safetensors";
  auto writer = SafetensorsWriter::Create(path,
                                          {{"tokens", SafetensorsDtype::kI32, {1, 3}},
                                           {"documents", SafetensorsDtype::kI32, {1, 3}},
                                           {"answers", SafetensorsDtype::kU8, {1, 3}}},
                                          {{"gemini.format", "1"},
                                           {"task", "causal"},
                                           {"rows", "1"},
                                           {"sequence", "3"},
                                           {"layout", "pad"}});
  ASSERT_OK(writer);
  const std::vector<int32_t> values = {4, 5, 6, 1, 1, 1};
  ASSERT_OK(writer->AppendRaw(
      {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(int32_t)}));
  ASSERT_OK(writer->AppendRaw({std::byte{0}, std::byte{0}, std::byte{1}}));
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(TrainingData data, TrainingData::Open(path, 99));
  ASSERT_NE(data.examples(), nullptr);
  EXPECT_EQ(data.num_sequences(), 1);
  EXPECT_EQ(data.sequence_tokens(), 3);
  std::vector<int64_t> tokens(3), labels(3);
  ASSERT_OK(data.examples()->Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  EXPECT_THAT(tokens, ElementsAre(4, 5, 6));
  EXPECT_THAT(labels, ElementsAre(-1, -1, 6));
  ASSERT_OK(data.CheckRows({.vocab_size = 7}, /*sees_padding=*/false));
  EXPECT_THAT(data.examples()->CountAnswers(0), IsOkAndHolds(1));
  EXPECT_THAT(data.CheckRows({.vocab_size = 6}, /*sees_padding=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token 6 in row 0")));
}

}  // namespace
}  // namespace gemini::trainer
