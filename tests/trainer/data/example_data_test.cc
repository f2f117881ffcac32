// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/example_data.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/status_matchers.h"
#include "tests/trainer/data/row_file_fixture.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr int64_t kVocabulary = 50;

// What a file holds: at first three rows of four tokens, of which the last has padding.
struct Content {
  std::map<std::string, std::string> metadata = {{"gemini.format", "1"},
                                                 {"task", "causal"},
                                                 {"rows", "3"},
                                                 {"sequence", "4"},
                                                 {"layout", "pad"}};
  std::vector<int64_t> shape = {3, 4};
  std::vector<int32_t> tokens = {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0};
  std::vector<uint8_t> answers = {0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0};
  std::vector<int32_t> documents = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
};

class ExampleDataTest : public RowFileTest {
 protected:
  static std::vector<Tensor> TensorsOf(const Content& content) {
    return {{{"tokens", SafetensorsDtype::kI32, content.shape}, Bytes(content.tokens)},
            {{"documents", SafetensorsDtype::kI32, content.shape}, Bytes(content.documents)},
            {{"answers", SafetensorsDtype::kU8, content.shape}, Bytes(content.answers)}};
  }
  void Write(const Content& content) { WriteTensors(TensorsOf(content), content.metadata); }

  absl::StatusOr<ExampleData> Open() const {
    absl::StatusOr<RowFile> file = RowFile::Open(path_);
    if (!file.ok()) return file.status();
    absl::StatusOr<TokenRows> rows = TokenRows::Open(*std::move(file));
    if (!rows.ok()) return rows.status();
    return ExampleData::Open(*std::move(rows));
  }
  static RowNeeds Needs(bool takes_padding = true) {
    return {.vocab_size = kVocabulary, .takes_padding = takes_padding};
  }
  // What the file is refused for when its rows are checked.
  absl::Status Check(const Content& content, bool takes_padding = true) {
    Write(content);
    absl::StatusOr<ExampleData> data = Open();
    return data.ok() ? data->CheckRows(Needs(takes_padding)) : data.status();
  }
};

TEST_F(ExampleDataTest, LabelsAreTheTokensThatAreAnswers) {
  Write({});
  ASSERT_OK_AND_ASSIGN(ExampleData data, Open());
  EXPECT_EQ(data.rows().num_rows(), 3);
  EXPECT_THAT(data.CountAnswers(0), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(data.rows().sequence_tokens(), 4);
  ASSERT_OK(data.CheckRows(Needs()));
  std::vector<int64_t> tokens(4), labels(4);
  ASSERT_OK(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  EXPECT_THAT(tokens, ElementsAre(11, 12, 13, 14));
  EXPECT_THAT(labels, ElementsAre(-1, 12, -1, -1));
  ASSERT_OK(data.Read(2, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  EXPECT_THAT(tokens, ElementsAre(15, 16, 0, 0));
  EXPECT_THAT(labels, ElementsAre(-1, 16, -1, -1));
  EXPECT_THAT(data.CountAnswers(0), IsOkAndHolds(2));
  EXPECT_THAT(data.CountAnswers(2), IsOkAndHolds(1));
}

TEST_F(ExampleDataTest, RowsThatAreNotThereAndOtherRoomAreRefused) {
  Write({});
  ASSERT_OK_AND_ASSIGN(const ExampleData data, Open());
  std::vector<int64_t> tokens(4), labels(4);
  for (const int64_t index : {-1, 3}) {
    const std::string no_row = "no row " + std::to_string(index) + " of 3";
    EXPECT_THAT(data.Read(index, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
                StatusIs(kInvalid, HasSubstr(no_row)));
    EXPECT_THAT(data.CountAnswers(index), StatusIs(kInvalid, HasSubstr(no_row)));
  }
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels).first(3)),
              StatusIs(kInvalid, HasSubstr("4 tokens and 3 labels, a row has 4")));
}

TEST_F(ExampleDataTest, AnotherFormatOrTaskIsNamed) {
  for (const auto& [key, value, message] :
       {std::tuple("gemini.format", "2", "its gemini.format is '2', expected '1'"),
        std::tuple("gemini.format", "", "its gemini.format is missing, expected '1'"),
        std::tuple("task", "cooking", "its task is 'cooking', expected causal, masked"),
        std::tuple("task", "masked", "its mask_token is missing, expected 0 to"),
        std::tuple("rows", "4", "its rows is '4', expected '3'"),
        std::tuple("sequence", "8", "its sequence is '8', expected '4'"),
        std::tuple("sequence", "", "its sequence is missing, expected '4'"),
        std::tuple("layout", "heap", "its layout is 'heap', expected 'pad'"),
        std::tuple("layout", "", "its layout is missing, expected 'pad'")}) {
    Content content;
    content.metadata[key] = value;
    if (*value == '\0') content.metadata.erase(key);
    EXPECT_THAT(Check(content), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message),
                                                         HasSubstr("docs/data.md"))));
  }
}

TEST_F(ExampleDataTest, OtherTensorsAreNamedWithTheirShapes) {
  const Content content;
  struct Case {
    size_t tensor;
    Tensor put;
    const char* message;
  };
  const std::vector<Case> cases = {
      {0,
       {{"token", SafetensorsDtype::kI32, {3, 4}}, Bytes(content.tokens)},
       "has no tensor tokens"},
      {2,
       {{"answer", SafetensorsDtype::kU8, {3, 4}}, Bytes(content.answers)},
       "has no tensor answers"},
      {0,
       {{"tokens", SafetensorsDtype::kU32, {3, 4}}, Bytes(content.tokens)},
       "tensor tokens is U32 [3, 4], expected I32 [rows, tokens]"},
      {0,
       {{"tokens", SafetensorsDtype::kI32, {12}}, Bytes(content.tokens)},
       "tensor tokens is I32 [12], expected I32 [rows, tokens]"},
      {1,
       {{"documents", SafetensorsDtype::kI32, {4, 3}}, Bytes(content.documents)},
       "tensor documents is I32 [4, 3], expected I32 [3, 4]"},
      {2,
       {{"answers", SafetensorsDtype::kBool, {3, 4}}, Bytes(content.answers)},
       "tensor answers is BOOL [3, 4], expected U8 [3, 4]"}};
  for (const Case& c : cases) {
    std::vector<Tensor> tensors = TensorsOf(content);
    tensors[c.tensor] = c.put;
    WriteTensors(tensors, content.metadata);
    EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(c.message))));
  }
}

TEST_F(ExampleDataTest, NoRowsAndRowsOfOneTokenAreRefused) {
  Content content;
  content.metadata["rows"] = "0";
  content.shape = {0, 4};
  content.tokens = content.documents = {};
  content.answers = {};
  EXPECT_THAT(Check(content), StatusIs(kInvalid, HasSubstr("0 rows of 4 tokens")));
  content.metadata["rows"] = content.metadata["sequence"] = "1";
  content.shape = {1, 1};
  content.tokens = content.documents = {1};
  content.answers = {1};
  EXPECT_THAT(Check(content), StatusIs(kInvalid, HasSubstr("1 rows of 1 tokens")));
}

TEST_F(ExampleDataTest, ATokenThatIsNotInTheVocabularyIsNamedWithItsRow) {
  for (const int32_t token : {static_cast<int32_t>(kVocabulary), -3}) {
    Content content;
    content.tokens[10] = token;  // Padding is looked up, too.
    EXPECT_THAT(Check(content),
                StatusIs(kInvalid, AllOf(HasSubstr(path_),
                                         HasSubstr("token " + std::to_string(token) +
                                                   " in row 2, position 2"),
                                         HasSubstr("vocabulary of 50"))));
  }
}

TEST_F(ExampleDataTest, ARowWithoutAnAnswerIsNamed) {
  Content content;
  content.answers[5] = 0;
  EXPECT_THAT(Check(content), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 1 has no "
                                                                                   "answer among "
                                                                                   "its 4"))));
}

TEST_F(ExampleDataTest, PackedRowsHaveDocuments) {
  Content content;
  content.metadata["layout"] = "pack";
  content.documents = {1, 1, 1, 1, 1, 2, 3, 3, 1, 1, 0, 0};
  content.answers = {0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0};
  EXPECT_OK(Check(content));
  ASSERT_OK_AND_ASSIGN(const ExampleData data, Open());
  EXPECT_TRUE(data.rows().is_packed());
  EXPECT_THAT(data.rows().ReadDocuments(0), IsOkAndHolds(ElementsAre(4)));
  EXPECT_THAT(data.rows().ReadDocuments(1), IsOkAndHolds(ElementsAre(1, 1, 2)));
  EXPECT_THAT(data.rows().ReadDocuments(2), IsOkAndHolds(ElementsAre(2)));
  EXPECT_THAT(data.rows().ReadDocuments(3), StatusIs(kInvalid, HasSubstr("no row 3 of 3")));
  // A router counts padding, and does not count documents.
  EXPECT_THAT(Check(content, /*takes_padding=*/false),
              StatusIs(kUnimplemented, HasSubstr("row 2 ends in 2 tokens")));
  content.answers[6] = 1;
  EXPECT_THAT(Check(content),
              StatusIs(kInvalid, AllOf(HasSubstr(path_),
                                       HasSubstr("row 1 has an answer at position 2, where document"
                                                 " 3 begins"))));
}

TEST_F(ExampleDataTest, PaddedRowsHaveOneDocument) {
  Content content;
  content.documents = {1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 0, 0};
  EXPECT_THAT(Check(content),
              StatusIs(kInvalid, HasSubstr("row 1 has document 2 at position 2, behind document "
                                           "1")));
  ASSERT_OK_AND_ASSIGN(const ExampleData data, Open());
  EXPECT_FALSE(data.rows().is_packed());
}

TEST_F(ExampleDataTest, PaddingIsRefusedWhereTheModelDoesNotTakeIt) {
  EXPECT_THAT(Check({}, /*takes_padding=*/false),
              StatusIs(kUnimplemented, AllOf(HasSubstr(path_), HasSubstr("row 2 ends in 2 tokens"),
                                             HasSubstr("output_router_logits"))));
  Content content;
  content.documents = std::vector<int32_t>(12, 1);
  EXPECT_OK(Check(content, /*takes_padding=*/false));
}

TEST_F(ExampleDataTest, DocumentsAndAnswersWhereNoneMayBeAreNamed) {
  struct Case {
    std::vector<int32_t> documents;  // Of the last row.
    std::vector<uint8_t> answers;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {{0, 0, 0, 0}, {0, 1, 0, 0}, "row 2 has document 0 at position 0, expected 1"},
           {{2, 2, 0, 0}, {0, 1, 0, 0}, "row 2 has document 2 at position 0, expected 1"},
           {{1, 1, 3, 3}, {0, 1, 0, 0}, "row 2 has document 3 at position 2, behind document 1"},
           {{1, 1, -1, 0}, {0, 1, 0, 0}, "row 2 has document -1 at position 2, behind document 1"},
           {{1, 0, 1, 1}, {0, 0, 1, 0}, "row 2 has document 1 at position 2, behind document 0"},
           {{1, 1, 0, 0}, {0, 1, 1, 0}, "row 2 has padding at position 2 that is an answer"},
           {{1, 1, 1, 1}, {1, 1, 0, 0}, "row 2, position 0, expected 0, for nothing comes before"},
           {{1, 1, 1, 1}, {0, 1, 2, 0}, "row 2, position 2, expected 0 or 1"}}) {
    Content content;
    std::ranges::copy(c.documents, content.documents.end() - 4);
    std::ranges::copy(c.answers, content.answers.end() - 4);
    EXPECT_THAT(Check(content), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(c.message))));
  }
}

TEST_F(ExampleDataTest, RowsAreCheckedToTheLastPiece) {
  constexpr size_t kRows = 100'000;  // More than one piece of rows.
  Content content;
  content.metadata["rows"] = std::to_string(kRows);
  content.shape = {kRows, 4};
  content.tokens.assign(4 * kRows, 3);
  content.documents.assign(4 * kRows, 1);
  content.answers.clear();
  for (size_t row = 0; row < kRows; ++row)
    content.answers.insert(content.answers.end(), {0, 1, 0, 0});
  EXPECT_OK(Check(content));
  content.tokens[4 * 99'998 + 3] = 77;
  EXPECT_THAT(Check(content), StatusIs(kInvalid, HasSubstr("token 77 in row 99998, position 3")));
}

TEST_F(ExampleDataTest, AFileCutShortIsRefusedAndOneCutWhileOpenIsDataLoss) {
  Write({});
  const auto size_bytes = static_cast<off_t>(std::filesystem::file_size(path_));
  ASSERT_OK_AND_ASSIGN(ExampleData data, Open());
  ASSERT_EQ(::truncate(path_.c_str(), size_bytes - 2), 0);
  std::vector<int64_t> tokens(4), labels(4);
  ASSERT_OK(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  const std::string where = "ends at byte " + std::to_string(size_bytes - 2);
  for (const absl::Status& status :
       {data.Read(2, absl::MakeSpan(tokens), absl::MakeSpan(labels)), data.CheckRows(Needs())}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path_), HasSubstr(where))));
  }
  EXPECT_FALSE(Open().ok());
}

TEST_F(ExampleDataTest, AnswersThatChangeWhileTheFileIsOpenAreNamedWithTheirByte) {
  Write({});
  ASSERT_OK_AND_ASSIGN(const ExampleData data, Open());
  const auto byte = static_cast<int64_t>(std::filesystem::file_size(path_)) - 12 + 5;
  std::filesystem::resize_file(path_, static_cast<uintmax_t>(byte));
  std::filesystem::resize_file(path_, static_cast<uintmax_t>(byte) + 7);  // Zeros.
  std::vector<int64_t> tokens(4), labels(4);
  EXPECT_THAT(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
              StatusIs(kInvalid, HasSubstr("row 1 has no answer")));
  Content content;
  content.answers[5] = 9;
  Write(content);
  ASSERT_OK_AND_ASSIGN(const ExampleData changed, Open());
  EXPECT_THAT(changed.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
              StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("answers has 9 at byte " +
                                                                   std::to_string(byte)))));
}

TEST_F(ExampleDataTest, RowsThatChangeAfterTheyWereCheckedAreRefused) {
  Write({});
  ASSERT_OK_AND_ASSIGN(ExampleData data, Open());
  ASSERT_OK(data.CheckRows(Needs()));
  std::vector<int64_t> tokens(4), labels(4);
  ASSERT_OK(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path_));
  const auto write = [&](int64_t byte, char value) {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(byte);
    file.put(value);
  };
  write(size - 12 + 1, 1);  // An answer more.
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
              StatusIs(kInvalid, AllOf(HasSubstr(path_),
                                       HasSubstr("row 0 has 3 answers and had 2 when it was"))));
  write(size - 12 + 1, 0);
  write(size - 12 - 2 * 48 + 3, 1);  // The last byte of the first token: 2^24 more.
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
              StatusIs(kInvalid, HasSubstr("token 16777223 in row 0, position 0")));
}

TEST_F(ExampleDataTest, TheFingerprintChangesWithTensorsAndTheSize) {
  const auto fingerprint = [&](const Content& content) {
    Write(content);
    const absl::StatusOr<ExampleData> data = Open();
    EXPECT_OK(data);
    const absl::StatusOr<TokenFingerprint> made = data->rows().Fingerprint();
    EXPECT_OK(made);
    return *made;
  };
  const TokenFingerprint whole = fingerprint({});
  EXPECT_EQ(whole.num_tokens, 12);
  EXPECT_EQ(whole.file_bytes, std::filesystem::file_size(path_));
  EXPECT_EQ(fingerprint({}), whole);
  Content tokens, answers, documents, metadata;
  documents.documents[9] = 0;
  tokens.tokens[11] = 1;
  answers.answers[3] = 0;
  metadata.metadata["template"] = std::string(64, 'a');
  const TokenFingerprint with_template = fingerprint(metadata);
  EXPECT_NE(fingerprint(tokens).ends_crc32c, whole.ends_crc32c);
  EXPECT_NE(fingerprint(answers).ends_crc32c, whole.ends_crc32c);
  EXPECT_NE(fingerprint(documents).ends_crc32c, whole.ends_crc32c);
  EXPECT_NE(fingerprint(metadata).file_bytes, whole.file_bytes);
  metadata.metadata["template"] = std::string(64, 'b');  // Of the same length.
  EXPECT_NE(fingerprint(metadata).ends_crc32c, with_template.ends_crc32c);
}

// What a masked task hides: any token of a row may be an answer.
Content Masked() {
  Content content;
  content.metadata["task"] = "masked";
  content.metadata["mask_token"] = "49";
  content.answers = {1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0};
  return content;
}

TEST_F(ExampleDataTest, OfAMaskedTaskTheFirstTokenMayBeAnAnswer) {
  Write(Masked());
  ASSERT_OK_AND_ASSIGN(ExampleData data, Open());
  EXPECT_EQ(data.rows().task(), TaskKind::kMasked);
  EXPECT_EQ(data.mask_token(), 49);
  ASSERT_OK(data.CheckRows(Needs()));
  std::vector<int64_t> tokens(4), labels(4);
  ASSERT_OK(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  EXPECT_THAT(tokens, ElementsAre(11, 12, 13, 14));
  EXPECT_THAT(labels, ElementsAre(11, -1, -1, 14));
  EXPECT_THAT(data.CountAnswers(0), IsOkAndHolds(4));
  // So may that of each document.
  Content packed = Masked();
  packed.metadata["layout"] = "pack";
  packed.documents = {1, 1, 2, 3, 1, 2, 2, 2, 1, 1, 0, 0};
  EXPECT_OK(Check(packed));
  Content padding = Masked();
  padding.answers[10] = 1;
  EXPECT_THAT(Check(padding), StatusIs(kInvalid, HasSubstr("padding at position 2 that is an "
                                                           "answer")));
}

TEST_F(ExampleDataTest, AMaskTokenThatIsMissingOrNoneOfTheVocabularyIsRefused) {
  for (const auto& [value, message] :
       {std::tuple("", "its mask_token is missing, expected 0 to 2147483647"),
        std::tuple("-1", "its mask_token is '-1', expected 0 to"),
        std::tuple("[MASK]", "its mask_token is '[MASK]', expected 0 to"),
        std::tuple("2147483648", "its mask_token is '2147483648', expected 0 to"),
        std::tuple("50", "its mask_token is 50, and the model has a vocabulary of 50")}) {
    Content content = Masked();
    content.metadata["mask_token"] = value;
    if (*value == '\0') content.metadata.erase("mask_token");
    EXPECT_THAT(Check(content), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
  // Others need none.
  Content causal;
  causal.metadata["mask_token"] = "[MASK]";
  EXPECT_OK(Check(causal));
}

TEST_F(ExampleDataTest, PaddingIsFoundInWhicheverRowItIs) {
  Content content = Masked();
  content.documents[11] = content.documents[10] = 1;
  Write(content);
  ASSERT_OK_AND_ASSIGN(ExampleData full, Open());
  ASSERT_OK(full.CheckRows(Needs()));
  EXPECT_FALSE(full.has_padding());
  content.documents[3] = 0;
  content.answers[3] = 0;
  Write(content);
  ASSERT_OK_AND_ASSIGN(ExampleData padded, Open());
  EXPECT_FALSE(padded.has_padding());
  ASSERT_OK(padded.CheckRows(Needs()));
  EXPECT_TRUE(padded.has_padding());
}

TEST_F(ExampleDataTest, WhatIsNoSafetensorsFileIsNamed) {
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("rows.safetensors")));
  std::filesystem::create_directory(path_);
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("not a regular file")));
}

}  // namespace
}  // namespace gemini::trainer
