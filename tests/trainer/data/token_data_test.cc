// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/token_data.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Npy(const std::string& dictionary, const std::string& payload, int major = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  const size_t size = dictionary.size();
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(size >> (8 * i));
  return file + dictionary + payload;
}
std::string Dictionary(const std::string& descr, const std::string& shape) {
  return absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", shape,
                      ", }  \n");
}
template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

class TokenDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "token_data_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern + "/tokens.npy";
  }
  void TearDown() override {
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  }
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string path_;
};

TEST_F(TokenDataTest, SequenceNIsTheTokensFromNTimesItsLength) {
  for (int major : {1, 2, 3}) {
    Write(Npy(Dictionary("<u2", "(8,)"), Bytes<uint16_t>({0, 1, 2, 3, 4, 5, 65535, 7}), major));
    ASSERT_OK_AND_ASSIGN(TokenData data, TokenData::Open(path_, 3));
    EXPECT_EQ(data.num_tokens(), 8);
    EXPECT_EQ(data.num_sequences(), 2);
    std::vector<int64_t> tokens(3);
    ASSERT_OK(data.Read(1, absl::MakeSpan(tokens)));
    EXPECT_THAT(tokens, ElementsAre(3, 4, 5));
    EXPECT_THAT(data.Read(2, absl::MakeSpan(tokens)), StatusIs(kInvalid));
    EXPECT_THAT(data.Read(-1, absl::MakeSpan(tokens)), StatusIs(kInvalid));
  }
}

TEST_F(TokenDataTest, TheFingerprintChangesWithTheLengthAndBothEnds) {
  constexpr size_t kTokens = 3 << 20;  // 6 MiB.
  const std::vector<uint16_t> tokens(kTokens, 7);
  const auto fingerprint = [&](const std::vector<uint16_t>& some) {
    Write(Npy(Dictionary("<u2", absl::StrCat("(", some.size(), ",)")), Bytes<uint16_t>(some)));
    const absl::StatusOr<TokenData> data = TokenData::Open(path_, 3);
    EXPECT_OK(data);
    const absl::StatusOr<TokenFingerprint> made = data->Fingerprint();
    EXPECT_OK(made);
    return *made;
  };
  const TokenFingerprint whole = fingerprint(tokens);
  EXPECT_EQ(whole.num_tokens, kTokens);
  EXPECT_EQ(whole.file_bytes, std::filesystem::file_size(path_));
  EXPECT_EQ(fingerprint(tokens), whole);
  for (const size_t changed : {size_t{0}, kTokens - 1}) {
    std::vector<uint16_t> other = tokens;
    other[changed] = 8;
    EXPECT_NE(fingerprint(other).ends_crc32c, whole.ends_crc32c) << changed;
  }
  EXPECT_NE(fingerprint(std::vector<uint16_t>(kTokens - 1, 7)), whole);
  EXPECT_NE(fingerprint({1, 2, 3}), fingerprint({3, 2, 1}));  // The ends are the same bytes.
}

TEST_F(TokenDataTest, FourByteTokensAreUnsigned) {
  Write(Npy(Dictionary("<u4", "(2,)"), Bytes<uint32_t>({1, 4294967295u})));
  ASSERT_OK_AND_ASSIGN(TokenData data, TokenData::Open(path_, 2));
  std::vector<int64_t> tokens(2);
  ASSERT_OK(data.Read(0, absl::MakeSpan(tokens)));
  EXPECT_THAT(tokens, ElementsAre(1, 4294967295));
}

TEST_F(TokenDataTest, ATokenPastTheVocabularyIsNamedWithItsPosition) {
  std::vector<uint16_t> tokens(300'000, 5);
  tokens[200'001] = 7;
  Write(Npy(Dictionary("<u2", "(300000,)"), Bytes(tokens)));
  ASSERT_OK_AND_ASSIGN(TokenData data, TokenData::Open(path_, 1000));
  EXPECT_OK(data.CheckVocabulary(8));
  EXPECT_THAT(data.CheckVocabulary(7),
              StatusIs(kInvalid, AllOf(HasSubstr("token 7 at position 200001"),
                                       HasSubstr("vocabulary of 7"))));
}

TEST_F(TokenDataTest, TokensThatNoSequenceUsesAreNotChecked) {
  Write(Npy(Dictionary("<u2", "(5,)"), Bytes<uint16_t>({1, 1, 1, 1, 999})));
  ASSERT_OK_AND_ASSIGN(TokenData data, TokenData::Open(path_, 2));
  EXPECT_OK(data.CheckVocabulary(2));
}

TEST_F(TokenDataTest, OtherArraysAreRefusedWithWhatTheyAre) {
  const std::pair<std::string, const char*> bad[] = {
      {Npy(Dictionary("<i8", "(8,)"), ""), "'<i8'"},
      {Npy(Dictionary(">u2", "(8,)"), ""), "'>u2'"},
      {Npy(Dictionary("<f4", "(8,)"), ""), "'<f4'"},
      {Npy(Dictionary("<u2", "(2, 4)"), ""), "2 dimensions"},
      {Npy(Dictionary("<u2", "()"), ""), "0 dimensions"},
      {Npy("{'descr': [('a', '<u2')], 'shape': (1,)}", ""), "records"},
      {Npy(Dictionary("<u2", "(99999999999999999999,)"), ""), "shape is malformed"},
      {Npy(Dictionary("<u2", "(9223372036854775807,)"), ""), "more than a file holds"},
      {Npy(Dictionary("<u2", "(-1,)"), ""), "shape is malformed"},
      {Npy("{'descr': '<u2', 'fortran_order': False}", ""), "malformed"},
      {Npy("{'shape': (1,)}", ""), "its elements are ''"},
      {Npy("[]", ""), "no dictionary"},
      {"PK\x03\x04 not an array at all", "no .npy file"},
      {"", "no .npy file"},
      {std::string("\x93NUMPY\x09\0\0\0\0\0", 12), "npy version 9"},
      {std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{", 13), "does not end"}};
  for (const auto& [file, message] : bad) {
    Write(file);
    EXPECT_THAT(TokenData::Open(path_, 1), StatusIs(kInvalid, HasSubstr(message))) << message;
  }
}

TEST_F(TokenDataTest, AFileShorterThanItsHeaderPromisesIsDataLoss) {
  Write(Npy(Dictionary("<u2", "(8,)"), Bytes<uint16_t>({1, 2, 3})));
  EXPECT_THAT(TokenData::Open(path_, 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("promises 8 tokens")));
}

TEST_F(TokenDataTest, AFileCutShortWhileOpenIsDataLossAndNoFault) {
  Write(Npy(Dictionary("<u2", "(8,)"), Bytes<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8})));
  ASSERT_OK_AND_ASSIGN(TokenData data, TokenData::Open(path_, 8));
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(std::filesystem::file_size(path_)) - 3),
            0);
  std::vector<int64_t> tokens(8);
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens)), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(TokenDataTest, LessThanOneSequenceIsRefused) {
  Write(Npy(Dictionary("<u2", "(3,)"), Bytes<uint16_t>({1, 2, 3})));
  EXPECT_THAT(TokenData::Open(path_, 4), StatusIs(kInvalid, HasSubstr("less than one sequence")));
}

TEST_F(TokenDataTest, MissingFilesAndDirectoriesAreNamed) {
  EXPECT_THAT(TokenData::Open(path_, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokens.npy")));
  std::filesystem::create_directory(path_);
  EXPECT_THAT(TokenData::Open(path_, 1), StatusIs(kInvalid, HasSubstr("not a regular file")));
}

// Property: no header, however spoiled, does more than be refused.
TEST_F(TokenDataTest, SpoiledHeadersAreParsedOrRefused) {
  std::mt19937 random(/*seed=*/3);
  const std::string good = Npy(Dictionary("<u2", "(8,)"), "");
  for (int i = 0; i < 20'000; ++i) {
    std::string head = good.substr(0, random() % (good.size() + 1));
    for (int change = 0; change < 3 && !head.empty(); ++change) {
      head[random() % head.size()] = static_cast<char>(random());
    }
    const auto header = ParseNpyHeader(head, "fuzzed");
    if (header.ok()) {
      EXPECT_GE(header->num_elements, 0);
      EXPECT_LE(header->data_offset_bytes, static_cast<int64_t>(head.size()));
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
