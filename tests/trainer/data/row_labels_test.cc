// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/row_labels.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
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
using ::testing::IsEmpty;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// What a file of three rows holds: at first one of three classes a row.
struct Content {
  std::map<std::string, std::string> metadata = {{"gemini.format", "1"},
                                                 {"task", "sequence-classification"},
                                                 {"problem_type", "single_label_classification"},
                                                 {"num_labels", "3"},
                                                 {"names", ""}};
  std::vector<int64_t> labels_shape = {3};
  SafetensorsDtype labels_dtype = SafetensorsDtype::kI32;
  std::vector<std::byte> labels = Bytes<int32_t>({2, 0, 1});
};

// The same with numbers as labels, two a row.
Content WithNumbers(const std::string& problem, const std::vector<float>& labels) {
  Content content;
  content.metadata["problem_type"] = problem;
  content.metadata["num_labels"] = "2";
  content.labels_shape = {3, 2};
  content.labels_dtype = SafetensorsDtype::kF32;
  content.labels = Bytes(labels);
  return content;
}

class RowLabelsTest : public RowFileTest {
 protected:
  absl::StatusOr<RowLabels> WriteAndOpen(const Content& content) {
    WriteTensors({{{"labels", content.labels_dtype, content.labels_shape}, content.labels}},
                 content.metadata);
    absl::StatusOr<RowFile> file = RowFile::Open(path_);
    if (!file.ok()) return file.status();
    file_.emplace(*std::move(file));
    return RowLabels::Open(*file_, 3);
  }
  absl::StatusOr<std::vector<float>> Read(const RowLabels& labels, int64_t row) const {
    return labels.Read(*file_, row);
  }

  std::optional<RowFile> file_;
};

TEST_F(RowLabelsTest, LabelsAreReadInTheirOrder) {
  for (const char* const task : {"sequence-classification", "image-classification"}) {
    Content classes;
    classes.metadata["task"] = task;
    classes.metadata["names"] = R"(["no", "yes", "\u00e4"])";
    ASSERT_OK_AND_ASSIGN(const RowLabels labels, WriteAndOpen(classes));
    EXPECT_EQ(NameOf(labels.task().kind), task);
    EXPECT_EQ(labels.task().problem, ProblemType::kSingleLabel);
    EXPECT_EQ(labels.task().num_labels, 3);
    EXPECT_THAT(labels.task().names, ElementsAre("no", "yes", "\xc3\xa4"));
    EXPECT_THAT(Read(labels, 0), IsOkAndHolds(ElementsAre(2)));
    EXPECT_THAT(Read(labels, 1), IsOkAndHolds(ElementsAre(0)));
  }
  ASSERT_OK_AND_ASSIGN(const RowLabels several,
                       WriteAndOpen(WithNumbers("multi_label_classification", {0, 1, 1, 1, 0, 0})));
  EXPECT_EQ(several.task().problem, ProblemType::kMultiLabel);
  EXPECT_THAT(several.task().names, IsEmpty());
  EXPECT_THAT(Read(several, 0), IsOkAndHolds(ElementsAre(0, 1)));
  EXPECT_THAT(Read(several, 2), IsOkAndHolds(ElementsAre(0, 0)));
  ASSERT_OK_AND_ASSIGN(const RowLabels numbers,
                       WriteAndOpen(WithNumbers("regression", {0.5, -1e30f, 7, 0, 1, 2.25})));
  EXPECT_EQ(numbers.task().problem, ProblemType::kRegression);
  EXPECT_THAT(Read(numbers, 0), IsOkAndHolds(ElementsAre(0.5f, -1e30f)));
  EXPECT_THAT(Read(numbers, 2), IsOkAndHolds(ElementsAre(1, 2.25f)));
}

TEST_F(RowLabelsTest, LabelsOfAnotherTypeOrShapeAreRefused) {
  Content bytes = {};
  bytes.labels_dtype = SafetensorsDtype::kF32;
  EXPECT_THAT(WriteAndOpen(bytes),
              StatusIs(kInvalid, HasSubstr("tensor labels is F32 [3], expected I32 [3]")));
  Content column = {};
  column.labels_shape = {3, 1};
  EXPECT_THAT(WriteAndOpen(column),
              StatusIs(kInvalid, HasSubstr("tensor labels is I32 [3, 1], expected I32 [3]")));
  Content classes = {};
  classes.metadata["problem_type"] = "regression";
  EXPECT_THAT(WriteAndOpen(classes),
              StatusIs(kInvalid, HasSubstr("tensor labels is I32 [3], expected F32 [3, 3]")));
  Content turned = WithNumbers("regression", {1, 2, 3, 4, 5, 6});
  turned.labels_shape = {2, 3};
  EXPECT_THAT(WriteAndOpen(turned),
              StatusIs(kInvalid, HasSubstr("tensor labels is F32 [2, 3], expected F32 [3, 2]")));
}

TEST_F(RowLabelsTest, ClassesThatTheModelDoesNotHaveAreRefused) {
  for (const int32_t label : {3, -1, std::numeric_limits<int32_t>::max()}) {
    Content content;
    content.labels = Bytes<int32_t>({2, label, 1});
    ASSERT_OK_AND_ASSIGN(RowLabels labels, WriteAndOpen(content));
    EXPECT_OK(Read(labels, 1));  // Nobody has said yet what the model has.
    labels.set_num_labels(3);
    EXPECT_OK(Read(labels, 0));
    EXPECT_THAT(Read(labels, 1),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 1 has the label"),
                                         HasSubstr("one of the model's 3 labels, from 0 to 2"))));
  }
}

TEST_F(RowLabelsTest, NumbersThatAreNoLabelsAreRefused) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const float label : {0.5f, -1.0f, 2.0f, nan}) {
    ASSERT_OK_AND_ASSIGN(RowLabels labels, WriteAndOpen(WithNumbers("multi_label_classification",
                                                                    {0, 1, 1, 0, 1, label})));
    labels.set_num_labels(2);
    EXPECT_OK(Read(labels, 1));
    EXPECT_THAT(Read(labels, 2),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("row 2 has the label"),
                                         HasSubstr("expected 0 or 1"))));
  }
  for (const float label : {nan, infinity, -infinity}) {
    ASSERT_OK_AND_ASSIGN(RowLabels labels,
                         WriteAndOpen(WithNumbers("regression", {0, 1, label, 0, 1, 1})));
    labels.set_num_labels(2);
    EXPECT_THAT(Read(labels, 1), StatusIs(kInvalid, AllOf(HasSubstr("row 1 has the label"),
                                                          HasSubstr("expected a number"))));
  }
}

TEST_F(RowLabelsTest, AnotherHeaderIsRefused) {
  for (const auto& [key, value, message] :
       {std::tuple("problem_type", "cooking", "its problem_type is 'cooking', expected one of sin"),
        std::tuple("problem_type", "-", "its problem_type is missing"),
        std::tuple("num_labels", "-", "its num_labels is missing, expected 1 to 65536"),
        std::tuple("num_labels", "0", "its num_labels is '0', expected 1 to"),
        std::tuple("num_labels", "-1", "its num_labels is '-1', expected 1 to"),
        std::tuple("num_labels", "65537", "its num_labels is '65537', expected 1 to"),
        std::tuple("num_labels", "many", "its num_labels is 'many', expected 1 to"),
        std::tuple("names", "-", "its names is missing"),
        std::tuple("names", "no, yes", "its names are no JSON list of 3 texts"),
        std::tuple("names", R"({"0":"a","1":"b","2":"c"})", "its names are no JSON list of 3"),
        std::tuple("names", R"(["a","b"])", "its names are no JSON list of 3 texts"),
        std::tuple("names", R"(["a","b","c","d"])", "its names are no JSON list of 3 texts"),
        std::tuple("names", R"(["a","b",3])", "its names are no JSON list of 3 texts")}) {
    Content content;
    content.metadata[key] = value;
    if (std::string(value) == "-") content.metadata.erase(key);
    EXPECT_THAT(WriteAndOpen(content),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
}

}  // namespace
}  // namespace gemini::trainer
