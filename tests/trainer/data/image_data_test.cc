// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/image_data.h"

#include <cstddef>
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

// Two images of two channels, each of one row of two pixels.
class ImageDataTest : public RowFileTest {
 protected:
  absl::StatusOr<ImageData> Open() const {
    absl::StatusOr<RowFile> file = RowFile::Open(path_);
    return file.ok() ? ImageData::Open(*std::move(file)) : file.status();
  }
  absl::StatusOr<ImageData> WriteAndOpen() {
    WriteTensors({{{"labels", SafetensorsDtype::kI32, {2}}, Bytes(labels_)},
                  {{"pixels", dtype_, shape_}, Bytes(pixels_)}},
                 metadata_);
    return Open();
  }
  static RowNeeds Needs(const ImageSpec& image, int64_t num_labels = 3) {
    return {.image = image,
            .task = {TaskKind::kImageClassification, ProblemType::kSingleLabel, num_labels}};
  }

  std::map<std::string, std::string> metadata_ = {
      {"gemini.format", "1"}, {"task", "image-classification"},
      {"rows", "2"},          {"problem_type", "single_label_classification"},
      {"num_labels", "3"},    {"names", ""},
      {"rescale", "0.5"},     {"mean", "[1, 2.5]"},
      {"std", "[2, -0.25]"}};
  SafetensorsDtype dtype_ = SafetensorsDtype::kU8;
  std::vector<int64_t> shape_ = {2, 2, 1, 2};
  std::vector<int32_t> labels_ = {2, 0};
  std::vector<uint8_t> pixels_ = {0, 2, 5, 6, 255, 4, 7, 8};
  static constexpr ImageSpec kImage = {.channels = 2, .height = 1, .width = 2};
};

TEST_F(ImageDataTest, PixelsAreReadAsTheModelTakesThem) {
  ASSERT_OK_AND_ASSIGN(ImageData data, WriteAndOpen());
  EXPECT_EQ(data.num_rows(), 2);
  EXPECT_THAT(data.image_sizes(), ElementsAre(2, 1, 2));
  EXPECT_EQ(data.image_elements(), 4);
  EXPECT_EQ(data.task().kind, TaskKind::kImageClassification);
  ASSERT_OK(data.CheckRows(Needs(kImage)));
  std::vector<float> image(4);
  ASSERT_OK(data.Read(0, absl::MakeSpan(image)));
  EXPECT_THAT(image, ElementsAre(-0.5f, 0.0f, 0.0f, -2.0f));
  ASSERT_OK(data.Read(1, absl::MakeSpan(image)));
  EXPECT_THAT(image, ElementsAre(63.25f, 0.5f, -4.0f, -6.0f));
  EXPECT_THAT(data.ReadLabels(0), IsOkAndHolds(ElementsAre(2)));
  EXPECT_THAT(data.ReadLabels(1), IsOkAndHolds(ElementsAre(0)));
}

TEST_F(ImageDataTest, ImagesThatAreNotThereAndOtherRoomAreRefused) {
  ASSERT_OK_AND_ASSIGN(const ImageData data, WriteAndOpen());
  std::vector<float> image(4);
  for (const int64_t index : {-1, 2}) {
    const std::string no_row = "no row " + std::to_string(index) + " of 2";
    EXPECT_THAT(data.Read(index, absl::MakeSpan(image)), StatusIs(kInvalid, HasSubstr(no_row)));
    EXPECT_THAT(data.ReadLabels(index), StatusIs(kInvalid, HasSubstr(no_row)));
  }
  EXPECT_THAT(data.Read(0, absl::MakeSpan(image).first(3)),
              StatusIs(kInvalid, HasSubstr("room for 3 numbers, an image has 4")));
}

TEST_F(ImageDataTest, ImagesOfAnotherSizeThanTheModelsAreRefused) {
  ASSERT_OK_AND_ASSIGN(ImageData data, WriteAndOpen());
  for (const ImageSpec& image : {ImageSpec{.channels = 1, .height = 2, .width = 2},
                                 ImageSpec{.channels = 2, .height = 2, .width = 1}}) {
    EXPECT_THAT(data.CheckRows(Needs(image)),
                StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr("images of 2 x 1 x 2"),
                                         HasSubstr("and the model takes"))));
  }
}

TEST_F(ImageDataTest, LabelsThatTheModelDoesNotHaveAreRefused) {
  ASSERT_OK_AND_ASSIGN(ImageData data, WriteAndOpen());
  EXPECT_THAT(data.CheckRows(Needs(kImage, /*num_labels=*/2)),
              StatusIs(kInvalid, HasSubstr("row 0 has the label 2")));
}

TEST_F(ImageDataTest, AnotherHeaderIsRefused) {
  const std::map<std::string, std::string> right = metadata_;
  for (const auto& [key, value, message] :
       {std::tuple("rows", "3", "its rows is '3', expected '2'"),
        std::tuple("rescale", "[1]", "its rescale is '[1]', expected a number"),
        std::tuple("rescale", "x", "its rescale is 'x', expected a number"),
        std::tuple("rescale", "-", "its rescale is missing"),
        std::tuple("mean", "[1]", "its mean is '[1]', expected a JSON list of 2 numbers"),
        std::tuple("mean", "[1, 2, 3]", "expected a JSON list of 2 numbers"),
        std::tuple("mean", R"([1, "2", 3])", "expected a JSON list of 2 numbers"),
        std::tuple("mean", "[1, null]", "expected a JSON list of 2 numbers"),
        std::tuple("std", "1", "its std is '1', expected a JSON list of 2 numbers"),
        std::tuple("std", "[1, 0]", "of the byte 0 in channel 1, expected numbers that fp32 has"),
        std::tuple("std", "[1, 1e-300]", "expected numbers that fp32 has"),
        std::tuple("rescale", "1e308", "its rescale, mean and std make"),
        std::tuple("problem_type", "-", "its problem_type is missing")}) {
    metadata_ = right;
    metadata_[key] = value;
    if (std::string(value) == "-") metadata_.erase(key);
    EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, AllOf(HasSubstr(path_), HasSubstr(message))));
  }
}

TEST_F(ImageDataTest, OtherTensorsAreRefused) {
  dtype_ = SafetensorsDtype::kI8;
  EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, HasSubstr("pixels is I8 [2, 2, 1, 2], expected")));
  dtype_ = SafetensorsDtype::kU8;
  shape_ = {2, 4};
  EXPECT_THAT(WriteAndOpen(), StatusIs(kInvalid, HasSubstr("tensor pixels is U8 [2, 4]")));
  WriteTensors({{{"labels", SafetensorsDtype::kI32, {2}}, Bytes(labels_)}}, metadata_);
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("has no tensor pixels")));
}

TEST_F(ImageDataTest, MoreChannelsThanAModelHasAreRefused) {
  shape_ = {1, 1 << 15, 1, 1};
  pixels_.assign(1 << 15, 0);
  labels_ = {0};
  metadata_["rows"] = "1";
  WriteTensors({{{"labels", SafetensorsDtype::kI32, {1}}, Bytes(labels_)},
                {{"pixels", dtype_, shape_}, Bytes(pixels_)}},
               metadata_);
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("images of 32768 channels, at most 16384")));
}

TEST_F(ImageDataTest, AFileThatIsCutWhileOpenIsDataLoss) {
  ASSERT_OK_AND_ASSIGN(ImageData data, WriteAndOpen());
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  std::vector<float> image(4);
  EXPECT_OK(data.Read(0, absl::MakeSpan(image)));
  EXPECT_THAT(data.Read(1, absl::MakeSpan(image)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
}

TEST_F(ImageDataTest, TheFingerprintChangesWithThePixels) {
  ASSERT_OK_AND_ASSIGN(const ImageData before, WriteAndOpen());
  ASSERT_OK_AND_ASSIGN(const TokenFingerprint first, before.Fingerprint());
  EXPECT_EQ(first.num_tokens, 8);
  pixels_[7] = 9;
  ASSERT_OK_AND_ASSIGN(const ImageData after, WriteAndOpen());
  ASSERT_OK_AND_ASSIGN(const TokenFingerprint second, after.Fingerprint());
  EXPECT_FALSE(first == second);
}

}  // namespace
}  // namespace gemini::trainer
