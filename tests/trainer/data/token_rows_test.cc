// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/token_rows.h"

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"
#include "tests/trainer/data/row_file_fixture.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kVocabulary = 50;

absl::Status Ignore(const TokenRows::Piece& /*piece*/) { return absl::OkStatus(); }

class TokenRowsTest : public RowFileTest {
 protected:
  // Writes what the members say.
  void Write() {
    WriteTensors({{{"tokens", SafetensorsDtype::kI32, shape_}, Bytes(tokens_)},
                  {{"documents", SafetensorsDtype::kI32, shape_}, Bytes(documents_)}},
                 metadata_);
  }
  absl::StatusOr<TokenRows> Open() const {
    absl::StatusOr<RowFile> file = RowFile::Open(path_);
    return file.ok() ? TokenRows::Open(*std::move(file)) : file.status();
  }
  absl::StatusOr<TokenRows> WriteAndOpen() {
    Write();
    return Open();
  }
  // Sets tensors of so many rows of one document.
  void Fill(int64_t rows, int64_t length) {
    shape_ = {rows, length};
    metadata_["rows"] = std::to_string(rows);
    metadata_["sequence"] = std::to_string(length);
    tokens_.assign(static_cast<size_t>(rows * length), 3);
    documents_.assign(static_cast<size_t>(rows * length), 1);
  }
  // Overwrites an element of the file: all are 4 bytes, and the documents stand behind the tokens.
  void Overwrite(size_t element, int32_t value) const {
    const size_t elements = tokens_.size() + documents_.size();
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path_) -
                                           sizeof(int32_t) * (elements - element)));
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::map<std::string, std::string> metadata_ = {{"gemini.format", "1"},
                                                  {"task", "sequence-classification"},
                                                  {"rows", "3"},
                                                  {"sequence", "4"},
                                                  {"layout", "pack"}};
  std::vector<int64_t> shape_ = {3, 4};
  std::vector<int32_t> tokens_ = {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0};
  std::vector<int32_t> documents_ = {1, 1, 1, 1, 1, 2, 2, 3, 1, 1, 0, 0};
};

TEST_F(TokenRowsTest, TheHeaderSaysTaskLayoutAndSizes) {
  for (const auto& [task, layout, kind, is_packed] :
       {std::tuple("causal", "pad", TaskKind::kCausal, false),
        std::tuple("masked", "pack", TaskKind::kMasked, true),
        std::tuple("sequence-classification", "pad", TaskKind::kSequenceClassification, false)}) {
    metadata_["task"] = task;
    metadata_["layout"] = layout;
    ASSERT_OK_AND_ASSIGN(const TokenRows rows, WriteAndOpen());
    EXPECT_EQ(rows.task(), kind);
    EXPECT_EQ(rows.is_packed(), is_packed);
    EXPECT_EQ(rows.num_rows(), 3);
    EXPECT_EQ(rows.sequence_tokens(), 4);
    EXPECT_EQ(rows.path(), path_);
  }
}

TEST_F(TokenRowsTest, AnotherHeaderIsRefused) {
  const std::map<std::string, std::string> right = metadata_;
  for (const auto& [key, value, message] :
       {std::tuple("layout", "PACK", "its layout is 'PACK', expected 'pad'"),
        std::tuple("rows", "03", "its rows is '03', expected '3'"),
        std::tuple("sequence", "5", "its sequence is '5', expected '4'")}) {
    metadata_ = right;
    metadata_[key] = value;
    if (*value == '\0') metadata_.erase(key);
    EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
}

TEST_F(TokenRowsTest, RowsAreReadWithTheirDocuments) {
  ASSERT_OK_AND_ASSIGN(const TokenRows rows, WriteAndOpen());
  EXPECT_THAT(rows.Read(0), IsOkAndHolds(ElementsAre(7, 8, 9, 10)));
  EXPECT_THAT(rows.Read(2), IsOkAndHolds(ElementsAre(15, 16, 0, 0)));
  EXPECT_THAT(rows.ReadDocuments(0), IsOkAndHolds(ElementsAre(4)));
  EXPECT_THAT(rows.ReadDocuments(1), IsOkAndHolds(ElementsAre(1, 2, 1)));
  EXPECT_THAT(rows.ReadDocuments(2), IsOkAndHolds(ElementsAre(2)));
  for (const int64_t row : {-1, 3}) {
    EXPECT_THAT(rows.Read(row), StatusIs(kInvalid, HasSubstr("no row")));
    EXPECT_THAT(rows.ReadDocuments(row), StatusIs(kInvalid, HasSubstr("no row")));
  }
  Overwrite(12 + 8, 0);
  EXPECT_THAT(rows.ReadDocuments(2),
              StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 2 is padding alone"))));
}

TEST_F(TokenRowsTest, PiecesAreAllRowsInTheirOrder) {
  constexpr int64_t kRows = 70'000;  // More than two pieces.
  Fill(kRows, 4);
  for (size_t row = 0; row < kRows; ++row) {
    tokens_[4 * row + 2] = static_cast<int32_t>(row % 1'000);
    documents_[4 * row + 3] = static_cast<int32_t>(row % 2);
  }
  ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
  int64_t next = 0, num_pieces = 0;
  EXPECT_OK(rows.ForEachPiece(1'000, [&](const TokenRows::Piece& piece) {
    EXPECT_EQ(piece.first_row, next);
    EXPECT_EQ(piece.tokens.size(), static_cast<size_t>(4 * piece.num_rows));
    EXPECT_EQ(piece.documents.size(), piece.tokens.size());
    for (int64_t i = 0; i < piece.num_rows; ++i) {
      const auto row = static_cast<size_t>(4 * i);
      EXPECT_EQ(piece.tokens[row + 2], (next + i) % 1'000);
      EXPECT_EQ(piece.documents[row + 3], (next + i) % 2);
    }
    next += piece.num_rows;
    ++num_pieces;
    return absl::OkStatus();
  }));
  EXPECT_EQ(next, kRows);
  EXPECT_GT(num_pieces, 2);
}

TEST_F(TokenRowsTest, ARowThatIsLongerThanAPieceIsOne) {
  Fill(2, 200'000);
  ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
  std::vector<int64_t> firsts;
  EXPECT_OK(rows.ForEachPiece(kVocabulary, [&](const TokenRows::Piece& piece) {
    EXPECT_EQ(piece.num_rows, 1);
    firsts.push_back(piece.first_row);
    return absl::OkStatus();
  }));
  EXPECT_THAT(firsts, ElementsAre(0, 1));
}

TEST_F(TokenRowsTest, AnErrorOfAVisitEndsIt) {
  Fill(70'000, 4);
  ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
  int visits = 0;
  EXPECT_THAT(rows.ForEachPiece(kVocabulary,
                                [&](const TokenRows::Piece& /*piece*/) {
                                  ++visits;
                                  return absl::AbortedError("enough");
                                }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  EXPECT_EQ(visits, 1);
}

TEST_F(TokenRowsTest, TokensThatAreNotInTheVocabularyAreRefused) {
  for (const int32_t token : {-1, static_cast<int32_t>(kVocabulary)}) {
    tokens_[11] = token;
    ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
    EXPECT_OK(rows.Read(2));  // Nobody said yet what the vocabulary is.
    EXPECT_THAT(rows.ForEachPiece(kVocabulary, Ignore),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("in row 2, position 3"))));
  }
  tokens_[11] = kVocabulary - 1;
  ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
  EXPECT_OK(rows.ForEachPiece(kVocabulary, Ignore));
}

TEST_F(TokenRowsTest, ATokenThatChangesAfterTheCheckIsRefused) {
  ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
  ASSERT_OK(rows.ForEachPiece(kVocabulary, Ignore));
  Overwrite(5, 49);
  EXPECT_THAT(rows.Read(1), IsOkAndHolds(ElementsAre(11, 49, 13, 14)));
  Overwrite(5, 50);
  EXPECT_THAT(rows.Read(1), StatusIs(kInvalid, AllOf(HasSubstr(path_),
                                                     HasSubstr("token 50 in row "
                                                               "1, position 1"),
                                                     HasSubstr("vocabulary of 50"))));
  EXPECT_OK(rows.Read(0));
}

TEST_F(TokenRowsTest, AFileThatIsCutWhileOpenIsDataLoss) {
  ASSERT_OK_AND_ASSIGN(TokenRows rows, WriteAndOpen());
  const auto cut = static_cast<off_t>(std::filesystem::file_size(path_)) - 48 - 2;
  ASSERT_EQ(::truncate(path_.c_str(), cut), 0);
  EXPECT_OK(rows.Read(1));
  for (const absl::Status& status : {rows.Read(2).status(), rows.ReadDocuments(0).status(),
                                     rows.ForEachPiece(kVocabulary, Ignore)}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
  }
  EXPECT_FALSE(Open().ok());
}

}  // namespace
}  // namespace gemini::trainer
