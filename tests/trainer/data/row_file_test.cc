// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/row_file.h"

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
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class RowFileOpenTest : public RowFileTest {
 protected:
  absl::StatusOr<RowFile> WriteAndOpen() {
    WriteTensors({{{"documents", SafetensorsDtype::kI32, {3, 4}}, Bytes(documents_)}}, metadata_);
    return RowFile::Open(path_);
  }

  std::map<std::string, std::string> metadata_ = {
      {"gemini.format", "1"}, {"task", "masked"}, {"count", "12"}};
  std::vector<int32_t> documents_ = std::vector<int32_t>(12);
};

TEST_F(RowFileOpenTest, TheHeaderSaysTheTask) {
  for (const auto& [task, kind] :
       {std::pair("causal", TaskKind::kCausal), std::pair("masked", TaskKind::kMasked),
        std::pair("sequence-classification", TaskKind::kSequenceClassification),
        std::pair("image-classification", TaskKind::kImageClassification),
        std::pair("distogram", TaskKind::kDistogram)}) {
    metadata_["task"] = task;
    ASSERT_OK_AND_ASSIGN(const RowFile file, WriteAndOpen());
    EXPECT_EQ(file.task(), kind);
    EXPECT_EQ(file.path(), path_);
  }
}

TEST_F(RowFileOpenTest, AnotherHeaderIsRefused) {
  const std::map<std::string, std::string> right = metadata_;
  for (const auto& [key, value, message] :
       {std::tuple("gemini.format", "2", "its gemini.format is '2', expected '1'"),
        std::tuple("task", "Causal", "its task is 'Causal', expected causal, masked, sequence-"),
        std::tuple("task", "", "its task is missing")}) {
    metadata_ = right;
    metadata_[key] = value;
    if (*value == '\0') metadata_.erase(key);
    EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
}

TEST_F(RowFileOpenTest, NumbersOfTheMetadataAreHeldAgainstTheirBounds) {
  metadata_["word"] = "seven";
  metadata_["huge"] = "9223372036854775808";
  metadata_["minus"] = "-4";
  ASSERT_OK_AND_ASSIGN(const RowFile file, WriteAndOpen());
  EXPECT_THAT(file.Number("count", 12, 12), IsOkAndHolds(12));
  EXPECT_THAT(file.Number("minus", -4, 0), IsOkAndHolds(-4));
  EXPECT_THAT(file.Metadata("word"), IsOkAndHolds("seven"));
  for (const auto& [key, message] :
       {std::pair("count", "its count is '12', expected 0 to 11"),
        std::pair("minus", "its minus is '-4', expected 0 to 11"),
        std::pair("word", "its word is 'seven', expected 0 to 11"),
        std::pair("huge", "its huge is '9223372036854775808', expected 0 to 11"),
        std::pair("none", "its none is missing, expected 0 to 11")}) {
    EXPECT_THAT(file.Number(key, 0, 11),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
  EXPECT_THAT(file.Number("count", 13, 20), StatusIs(kInvalid, HasSubstr("expected 13 to 20")));
  EXPECT_THAT(file.Metadata("none"), StatusIs(kInvalid, HasSubstr("its none is missing")));
}

TEST_F(RowFileOpenTest, TensorsAreFoundByTypeAndShape) {
  ASSERT_OK_AND_ASSIGN(const RowFile file, WriteAndOpen());
  EXPECT_OK(file.Find("documents", SafetensorsDtype::kI32, {3, 4}));
  EXPECT_THAT(file.Find("labels", SafetensorsDtype::kI32, {3}),
              StatusIs(kInvalid, HasSubstr("has no tensor labels")));
  EXPECT_THAT(file.Find("documents", SafetensorsDtype::kI32, {3}),
              StatusIs(kInvalid, HasSubstr("documents is I32 [3, 4], expected I32 [3]")));
  EXPECT_THAT(file.Find("documents", SafetensorsDtype::kU8, {3, 4}),
              StatusIs(kInvalid, HasSubstr("documents is I32 [3, 4], expected U8 [3, 4]")));
}

TEST_F(RowFileOpenTest, ARowThatIsNotThereIsRefused) {
  ASSERT_OK_AND_ASSIGN(const RowFile file, WriteAndOpen());
  EXPECT_OK(file.CheckIndex(0, 3));
  EXPECT_OK(file.CheckIndex(2, 3));
  for (const int64_t row : {-1, 3}) {
    EXPECT_THAT(file.CheckIndex(row, 3),
                StatusIs(kInvalid, path_ + ": no row " + std::to_string(row) + " of 3"));
  }
}

TEST_F(RowFileOpenTest, TheFingerprintChangesWithWhatTheMetadataSay) {
  ASSERT_OK_AND_ASSIGN(const RowFile before, WriteAndOpen());
  ASSERT_OK_AND_ASSIGN(const TokenFingerprint first, before.FingerprintOf(5));
  EXPECT_EQ(first.num_tokens, 5);
  EXPECT_THAT(before.FingerprintOf(5), IsOkAndHolds(first));
  metadata_["count"] = "13";
  ASSERT_OK_AND_ASSIGN(const RowFile after, WriteAndOpen());
  ASSERT_OK_AND_ASSIGN(const TokenFingerprint second, after.FingerprintOf(5));
  EXPECT_NE(first.ends_crc32c, second.ends_crc32c);
}

}  // namespace
}  // namespace gemini::trainer
