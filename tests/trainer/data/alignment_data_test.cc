// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/alignment_data.h"

#include <filesystem>
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
constexpr RowNeeds kNeeds = {.vocab_size = 23, .num_sequences = 2};

// Two alignments of two sequences of three residues.
class AlignmentDataTest : public RowFileTest {
 protected:
  absl::StatusOr<AlignmentData> Open() const {
    absl::StatusOr<RowFile> file = RowFile::Open(path_);
    if (!file.ok()) return file.status();
    EXPECT_TRUE(AlignmentData::IsOne(*file));
    return AlignmentData::Open(*std::move(file));
  }
  absl::StatusOr<AlignmentData> WriteAndOpen() {
    std::vector<Tensor> tensors = {{{"tokens", SafetensorsDtype::kI32, {2, 2, 3}}, Bytes(tokens_)}};
    if (metadata_["task"] == "distogram") {
      tensors.push_back({{"labels", SafetensorsDtype::kI32, {2, 3, 3}}, Bytes(bins_)});
    } else {
      tensors.push_back({{"answers", SafetensorsDtype::kU8, {2, 2, 3}}, Bytes(answers_)});
    }
    WriteTensors(tensors, metadata_);
    return Open();
  }
  void BeOfBins() {
    metadata_["task"] = "distogram";
    metadata_["num_bins"] = "5";
    metadata_.erase("mask_token");
  }

  std::map<std::string, std::string> metadata_ = {{"gemini.format", "1"}, {"task", "masked"},
                                                  {"rows", "2"},          {"sequences", "2"},
                                                  {"residues", "3"},      {"mask_token", "22"}};
  std::vector<int32_t> tokens_ = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<uint8_t> answers_ = {1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0};
  std::vector<int32_t> bins_ = {-1, 0, 1, 2, -1, 3, 4, 4, -1, -1, -1, -1, -1, -1, 2, -1, 3, -1};
};

TEST_F(AlignmentDataTest, ResiduesThatMayBeHiddenAreTheirOwnLabels) {
  ASSERT_OK_AND_ASSIGN(AlignmentData data, WriteAndOpen());
  EXPECT_EQ(data.task(), TaskSpec{.kind = TaskKind::kMasked});
  EXPECT_EQ(data.num_rows(), 2);
  EXPECT_EQ(data.num_sequences(), 2);
  EXPECT_EQ(data.num_residues(), 3);
  EXPECT_EQ(data.labels_per_row(), 6);
  EXPECT_EQ(data.mask_token(), 22);
  EXPECT_THAT(data.CountLabels(0), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(data.CheckRows(kNeeds));
  std::vector<int64_t> tokens(6), labels(6);
  ASSERT_OK(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  EXPECT_THAT(tokens, ElementsAre(7, 8, 9, 10, 11, 12));
  EXPECT_THAT(labels, ElementsAre(-1, -1, -1, 10, -1, -1));
  EXPECT_THAT(data.CountLabels(0), IsOkAndHolds(3));
  EXPECT_THAT(data.CountLabels(1), IsOkAndHolds(1));
}

TEST_F(AlignmentDataTest, ADistogramHasABinOfEachPair) {
  BeOfBins();
  ASSERT_OK_AND_ASSIGN(AlignmentData data, WriteAndOpen());
  EXPECT_EQ(data.task().kind, TaskKind::kDistogram);
  EXPECT_EQ(data.task().num_labels, 5);
  EXPECT_EQ(data.labels_per_row(), 9);
  ASSERT_OK(data.CheckRows(kNeeds));
  std::vector<int64_t> tokens(6), labels(9);
  ASSERT_OK(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels)));
  EXPECT_THAT(labels, ElementsAre(-1, 0, 1, 2, -1, 3, 4, 4, -1));
  EXPECT_THAT(data.CountLabels(0), IsOkAndHolds(6));
  EXPECT_THAT(data.CountLabels(1), IsOkAndHolds(2));
}

TEST_F(AlignmentDataTest, RowsThatAreNotThereAndOtherRoomAreRefused) {
  ASSERT_OK_AND_ASSIGN(const AlignmentData data, WriteAndOpen());
  std::vector<int64_t> tokens(6), labels(6);
  for (const int64_t row : {-1, 2}) {
    EXPECT_THAT(data.Read(row, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
                StatusIs(kInvalid, HasSubstr("no row " + std::to_string(row) + " of 2")));
  }
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels).first(5)),
              StatusIs(kInvalid, HasSubstr("room for 6 residues and 5 labels, an alignment has")));
}

TEST_F(AlignmentDataTest, AnotherHeaderIsRefused) {
  const std::map<std::string, std::string> right = metadata_;
  for (const auto& [key, value, message] :
       {std::tuple("task", "causal", "expected masked or distogram"),
        std::tuple("rows", "0", "its rows is '0', expected 1 to"),
        std::tuple("rows", "3", "tensor tokens is I32 [2, 2, 3], expected I32 [3, 2, 3]"),
        std::tuple("sequences", "many", "its sequences is 'many', expected 1 to"),
        std::tuple("residues", "-", "its residues is missing, expected 1 to"),
        std::tuple("residues", "2", "expected I32 [2, 2, 2]"),
        std::tuple("mask_token", "-", "its mask_token is missing"),
        std::tuple("mask_token", "-1", "its mask_token is '-1', expected 0 to")}) {
    metadata_ = right;
    metadata_[key] = value;
    if (std::string(value) == "-") metadata_.erase(key);
    EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
  metadata_ = right;
  BeOfBins();
  metadata_["num_bins"] = "65537";
  EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, HasSubstr("its num_bins is '65537'")));
  WriteTensors({{{"tokens", SafetensorsDtype::kI32, {2, 2, 3}}, Bytes(tokens_)}}, right);
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("has no tensor answers")));
}

TEST_F(AlignmentDataTest, WhatTheModelDoesNotHaveIsRefused) {
  const auto check = [&](const RowNeeds& needs) -> absl::Status {
    absl::StatusOr<AlignmentData> data = WriteAndOpen();
    return data.ok() ? data->CheckRows(needs) : data.status();
  };
  EXPECT_THAT(check({.vocab_size = 23, .num_sequences = 3}),
              StatusIs(kInvalid, HasSubstr("alignments of 2 sequences, and the model takes 3")));
  EXPECT_THAT(check({.vocab_size = 22, .num_sequences = 2}),
              StatusIs(kInvalid, HasSubstr("its mask_token is 22, and the model has")));
  tokens_[10] = 23;
  EXPECT_THAT(check(kNeeds), StatusIs(kInvalid, HasSubstr("token 23 in row 1, sequence 1, residue 1"
                                                          ", is not in the model's vocabulary")));
  tokens_[10] = -1;
  EXPECT_THAT(check(kNeeds), StatusIs(kInvalid, HasSubstr("token -1 in row 1")));
  tokens_[10] = 11;
  answers_[2] = 2;
  EXPECT_THAT(check(kNeeds), StatusIs(kInvalid, HasSubstr("answers has 2 in row 0, element 2")));
  answers_[2] = 0;
  answers_[9] = 0;
  EXPECT_THAT(check(kNeeds), StatusIs(kInvalid, HasSubstr("row 1 has no residue that may be")));
  BeOfBins();
  bins_[14] = 5;
  EXPECT_THAT(check(kNeeds), StatusIs(kInvalid, HasSubstr("row 1 has the bin 5 for residues 1 and 2"
                                                          ", expected -1 to 4")));
  bins_[14] = bins_[16] = -1;
  EXPECT_THAT(check(kNeeds), StatusIs(kInvalid, HasSubstr("row 1 has no known bin")));
}

TEST_F(AlignmentDataTest, AFileThatChangesWhileOpenIsRefused) {
  ASSERT_OK_AND_ASSIGN(AlignmentData data, WriteAndOpen());
  ASSERT_OK(data.CheckRows(kNeeds));
  answers_[1] = 1;
  {
    // The same file, and not another one of its name.
    const std::string other = path_;
    path_ += ".new";
    ASSERT_OK(WriteAndOpen());
    std::filesystem::copy_file(path_, other, std::filesystem::copy_options::overwrite_existing);
    path_ = other;
  }
  std::vector<int64_t> tokens(6), labels(6);
  EXPECT_THAT(data.Read(0, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
              StatusIs(kInvalid, HasSubstr("row 0 has 4 labels and had 3 when it was opened")));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  EXPECT_THAT(data.Read(1, absl::MakeSpan(tokens), absl::MakeSpan(labels)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
}

TEST_F(AlignmentDataTest, TheFingerprintChangesWithWhatIsThere) {
  ASSERT_OK_AND_ASSIGN(const AlignmentData before, WriteAndOpen());
  ASSERT_OK_AND_ASSIGN(const TokenFingerprint first, before.Fingerprint());
  EXPECT_EQ(first.num_tokens, 12);
  answers_[1] = 1;
  ASSERT_OK_AND_ASSIGN(const AlignmentData after, WriteAndOpen());
  ASSERT_OK_AND_ASSIGN(const TokenFingerprint second, after.Fingerprint());
  EXPECT_FALSE(first == second);
}

}  // namespace
}  // namespace gemini::trainer
