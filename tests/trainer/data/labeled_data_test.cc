// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/labeled_data.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
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

// What a file holds: at first three rows of four tokens, the last of which has padding, with three
// classes and without types.
struct Content {
  std::map<std::string, std::string> metadata = {
      {"gemini.format", "1"}, {"task", "sequence-classification"},
      {"rows", "3"},          {"sequence", "4"},
      {"layout", "pad"},      {"problem_type", "single_label_classification"},
      {"num_labels", "3"},    {"names", ""}};
  std::vector<int32_t> tokens = {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0};
  std::vector<int32_t> documents = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
  std::vector<std::byte> labels = Bytes<int32_t>({2, 0, 1});
  std::vector<uint8_t> types = {};
};

Content WithTypes() {
  Content content;
  content.types = {0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0};
  return content;
}

class LabeledDataTest : public RowFileTest {
 protected:
  // `tensors` in this order: tokens, documents, labels, types.
  void Write(const std::vector<SafetensorsWriter::Declaration>& declarations,
             const Content& content) {
    const std::vector<std::vector<std::byte>> bytes = {
        Bytes(content.tokens), Bytes(content.documents), content.labels, Bytes(content.types)};
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < declarations.size(); ++i) tensors.push_back({declarations[i], bytes[i]});
    WriteTensors(tensors, content.metadata);
  }
  absl::StatusOr<LabeledData> Open() const {
    absl::StatusOr<RowFile> file = RowFile::Open(path_);
    if (!file.ok()) return file.status();
    absl::StatusOr<TokenRows> rows = TokenRows::Open(*std::move(file));
    if (!rows.ok()) return rows.status();
    return LabeledData::Open(*std::move(rows));
  }
  absl::StatusOr<LabeledData> WriteAndOpen(const Content& content) {
    std::vector<SafetensorsWriter::Declaration> tensors = {
        {"tokens", SafetensorsDtype::kI32, {3, 4}},
        {"documents", SafetensorsDtype::kI32, {3, 4}},
        {"labels", SafetensorsDtype::kI32, {3}}};
    if (!content.types.empty()) tensors.push_back({"types", SafetensorsDtype::kU8, {3, 4}});
    Write(tensors, content);
    return Open();
  }
  static RowNeeds Needs(const LabeledData& data) {
    return {.vocab_size = kVocabulary, .num_token_types = 2, .task = data.task()};
  }
  // What the file is refused for when its rows are checked.
  absl::Status Check(const Content& content) {
    absl::StatusOr<LabeledData> data = WriteAndOpen(content);
    return data.ok() ? data->CheckRows(Needs(*data)) : data.status();
  }
  // Overwrites the bytes that stand so many before the file's end.
  template <typename T>
  void Overwrite(size_t bytes_before_end, T value) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-static_cast<std::streamoff>(bytes_before_end), std::ios::end);
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
};

TEST_F(LabeledDataTest, ClassesAreReadWithTheirRows) {
  Content content;
  content.metadata["names"] = R"(["no", "yes", "\u00e4"])";
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen(content));
  EXPECT_EQ(data.task().kind, TaskKind::kSequenceClassification);
  EXPECT_EQ(data.task().problem, ProblemType::kSingleLabel);
  EXPECT_EQ(data.task().num_labels, 3);
  EXPECT_THAT(data.task().names, ElementsAre("no", "yes", "\xc3\xa4"));
  EXPECT_FALSE(data.has_types());
  ASSERT_OK(data.CheckRows(Needs(data)));
  std::vector<int64_t> tokens(4);
  ASSERT_OK(data.Read(2, absl::MakeSpan(tokens), {}));
  EXPECT_THAT(tokens, ElementsAre(15, 16, 0, 0));
  EXPECT_THAT(data.ReadLabels(0), IsOkAndHolds(ElementsAre(2)));
  EXPECT_THAT(data.ReadLabels(1), IsOkAndHolds(ElementsAre(0)));
  EXPECT_THAT(data.rows().ReadDocuments(2), IsOkAndHolds(ElementsAre(2)));
  EXPECT_TRUE(data.has_padding());
}

TEST_F(LabeledDataTest, RowsMayBeFull) {
  Content content;
  content.documents.assign(content.tokens.size(), 1);
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen(content));
  ASSERT_OK(data.CheckRows(Needs(data)));
  EXPECT_FALSE(data.has_padding());
  EXPECT_THAT(data.rows().ReadDocuments(2), IsOkAndHolds(ElementsAre(4)));
}

TEST_F(LabeledDataTest, TypesAreReadWhereThereAreSome) {
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen(WithTypes()));
  EXPECT_TRUE(data.has_types());
  ASSERT_OK(data.CheckRows(Needs(data)));
  std::vector<int64_t> tokens(4), types(4);
  ASSERT_OK(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(types)));
  EXPECT_THAT(tokens, ElementsAre(7, 8, 9, 10));
  EXPECT_THAT(types, ElementsAre(0, 0, 1, 1));
  ASSERT_OK(data.Read(2, absl::MakeSpan(tokens), absl::MakeSpan(types)));
  EXPECT_THAT(types, ElementsAre(0, 1, 0, 0));
}

TEST_F(LabeledDataTest, RowsThatAreNotThereAndOtherRoomAreRefused) {
  ASSERT_OK_AND_ASSIGN(const LabeledData data, WriteAndOpen(WithTypes()));
  std::vector<int64_t> tokens(4), types(4);
  for (const int64_t index : {-1, 3}) {
    EXPECT_THAT(data.Read(index, absl::MakeSpan(tokens), absl::MakeSpan(types)),
                StatusIs(kInvalid, HasSubstr("no row")));
    EXPECT_THAT(data.ReadLabels(index), StatusIs(kInvalid, HasSubstr("no row")));
  }
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens), {}),
              StatusIs(kInvalid, HasSubstr("4 tokens and 0 types, a row has 4 and 4")));
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens).first(3), absl::MakeSpan(types)),
              StatusIs(kInvalid, HasSubstr("3 tokens and 4 types")));
  ASSERT_OK_AND_ASSIGN(const LabeledData plain, WriteAndOpen({}));
  EXPECT_THAT(plain.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(types)),
              StatusIs(kInvalid, HasSubstr("4 tokens and 4 types, a row has 4 and 0")));
}

TEST_F(LabeledDataTest, AnotherHeaderIsRefused) {
  for (const auto& [key, value, message] :
       {std::tuple("problem_type", "-", "its problem_type is missing"),
        std::tuple("layout", "pack", "its layout is 'pack', but each row has its own label"),
        std::tuple("gemini.format", "2", "its gemini.format is '2'")}) {
    Content content;
    content.metadata[key] = value;
    if (std::string(value) == "-") content.metadata.erase(key);
    EXPECT_THAT(WriteAndOpen(content),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
}

TEST_F(LabeledDataTest, OtherTensorsAreRefused) {
  const SafetensorsWriter::Declaration tokens = {"tokens", SafetensorsDtype::kI32, {3, 4}};
  const SafetensorsWriter::Declaration documents = {"documents", SafetensorsDtype::kI32, {3, 4}};
  Write({tokens, documents}, {});
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("has no tensor labels")));
  const SafetensorsWriter::Declaration labels = {"labels", SafetensorsDtype::kI32, {3}};
  Write({tokens, documents, labels, {"types", SafetensorsDtype::kI8, {3, 4}}}, WithTypes());
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("types is I8 [3, 4], expected U8 [3, 4]")));
  Write({tokens, documents, labels, {"types", SafetensorsDtype::kU8, {12}}}, WithTypes());
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("types is U8 [12], expected U8 [3, 4]")));
}

TEST_F(LabeledDataTest, ClassesThatTheModelDoesNotHaveAreRefused) {
  for (const int32_t label : {3, -1, std::numeric_limits<int32_t>::max()}) {
    Content content;
    content.labels = Bytes<int32_t>({2, label, 1});
    EXPECT_THAT(Check(content),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 1 has the label"),
                                         HasSubstr("one of the model's 3 labels, from 0 to 2"))));
  }
  // The model decides, and it may have more than the file, or fewer.
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen({}));
  RowNeeds needs = Needs(data);
  needs.task.num_labels = 2;
  EXPECT_THAT(data.CheckRows(needs), StatusIs(kInvalid, HasSubstr("row 0 has the label 2")));
  needs.task.num_labels = 9;
  EXPECT_OK(data.CheckRows(needs));
}

TEST_F(LabeledDataTest, TypesBeyondTheModelsAreRefused) {
  Content content = WithTypes();
  content.types[6] = 2;
  EXPECT_THAT(Check(content),
              StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 1 has a token of type 2 at "
                                                                   "position 2, and the model has "
                                                                   "2 types"))));
  // A model that knows no types has the one that needs none.
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen(WithTypes()));
  RowNeeds needs = Needs(data);
  needs.num_token_types = 0;
  EXPECT_THAT(data.CheckRows(needs), StatusIs(kInvalid, HasSubstr("row 0 has a token of type 1 at "
                                                                  "position 2, and the model has "
                                                                  "1 types")));
  content.types.assign(12, 0);
  ASSERT_OK_AND_ASSIGN(LabeledData zeros, WriteAndOpen(content));
  EXPECT_OK(zeros.CheckRows(needs));
}

TEST_F(LabeledDataTest, RowsAreOneTextWithPaddingBehindIt) {
  struct Case {
    std::vector<int32_t> documents;  // Of the last row.
    const char* message;
  };
  for (const Case& c :
       std::vector<Case>{{{1, 0, 1, 0}, "row 2 has document 1 at position 2, expected 0"},
                         {{0, 1, 1, 1}, "row 2 has document 0 at position 0, expected 1"},
                         {{0, 0, 0, 0}, "row 2 has document 0 at position 0, expected 1"},
                         {{2, 2, 2, 0}, "row 2 has document 2 at position 0, expected 1"},
                         {{1, 1, 2, 2}, "row 2 has document 2 at position 2"},
                         {{1, 1, 0, 2}, "row 2 has document 2 at position 3, expected 0"},
                         {{1, 1, -1, 0}, "row 2 has document -1 at position 2"}}) {
    Content content;
    std::ranges::copy(c.documents, content.documents.end() - 4);
    EXPECT_THAT(Check(content), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(c.message))));
  }
}

TEST_F(LabeledDataTest, PaddingIsRefusedWhereTheModelDoesNotTakeIt) {
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen({}));
  RowNeeds needs = Needs(data);
  needs.takes_padding = false;
  EXPECT_THAT(data.CheckRows(needs), StatusIs(absl::StatusCode::kUnimplemented,
                                              HasSubstr("row 2 ends in 2 tokens of padding")));
  Content content;
  content.documents.assign(12, 1);
  ASSERT_OK_AND_ASSIGN(LabeledData full, WriteAndOpen(content));
  EXPECT_OK(full.CheckRows(needs));
}

TEST_F(LabeledDataTest, ATokenThatIsNotInTheVocabularyIsRefused) {
  Content content;
  content.tokens[10] = kVocabulary;  // Padding is looked up, too.
  EXPECT_THAT(Check(content), StatusIs(kInvalid, HasSubstr("token 50 in row 2, position 2")));
}

TEST_F(LabeledDataTest, AFileThatIsCutWhileOpenIsDataLoss) {
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen(WithTypes()));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 2);
  std::vector<int64_t> tokens(4), types(4);
  EXPECT_OK(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(types)));
  for (const absl::Status& status :
       {data.Read(2, absl::MakeSpan(tokens), absl::MakeSpan(types)), data.CheckRows(Needs(data))}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
  }
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 12);  // Into the labels.
  EXPECT_OK(data.ReadLabels(1));
  EXPECT_THAT(data.ReadLabels(2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
  EXPECT_FALSE(Open().ok());
}

TEST_F(LabeledDataTest, RowsThatChangeAfterTheyWereCheckedAreRefused) {
  ASSERT_OK_AND_ASSIGN(LabeledData data, WriteAndOpen(WithTypes()));
  ASSERT_OK(data.CheckRows(Needs(data)));
  std::vector<int64_t> tokens(4), types(4);
  const auto read = [&] { return data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(types)); };
  ASSERT_OK(read());
  Overwrite<uint8_t>(7, 2);  // Before the end: 12 types, 3 labels and 12 documents of 4 bytes.
  EXPECT_THAT(read(), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 1 has a token of "
                                                                           "type 2 at position "
                                                                           "1"))));
  Overwrite<uint8_t>(7, 1);
  EXPECT_OK(read());
  Overwrite<int32_t>(12 + 8, 3);
  EXPECT_THAT(data.ReadLabels(1),
              StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 1 has the label 3"))));
  EXPECT_OK(data.ReadLabels(0));
  Overwrite<int32_t>(12 + 12 + 48 + 4 * 8, 1 << 24);
  EXPECT_THAT(read(), StatusIs(kInvalid, HasSubstr("token 16777216 in row 1, position 0")));
}

}  // namespace
}  // namespace gemini::trainer
