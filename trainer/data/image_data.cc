// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/image_data.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostChannels = 1 << 14;  // As of a model.

// Returns a list of `count` numbers that the metadata have, or one that is no list.
absl::StatusOr<std::vector<double>> NumbersOf(const RowFile& file, const std::string& key,
                                              size_t count, bool is_list) {
  GEMINI_ASSIGN_OR_RETURN(const std::string text, file.Metadata(key));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<double> numbers;
  if (json.is_array() == is_list) {
    for (const Json& one : is_list ? json : Json::array({json})) {
      if (one.is_number() && std::isfinite(one.get<double>())) numbers.push_back(one.get<double>());
    }
  }
  if (numbers.size() == count && (!is_list || json.size() == count)) return numbers;
  return file.WrongMetadata(
      key, is_list ? absl::StrCat("a JSON list of ", count, " numbers") : "a number");
}

}  // namespace

absl::StatusOr<ImageData> ImageData::Open(RowFile file) {
  ImageData data(std::move(file));
  const RowFile& opened = data.file_;
  const SafetensorsTensor* const pixels = opened.reader().Find("pixels");
  if (pixels == nullptr || pixels->dtype != SafetensorsDtype::kU8 || pixels->shape.size() != 4 ||
      pixels->num_elements < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        opened.path(), ": ",
        pixels == nullptr ? std::string("has no tensor pixels")
                          : absl::StrCat("tensor pixels is ", SafetensorsDtypeName(pixels->dtype),
                                         " [", absl::StrJoin(pixels->shape, ", "), "]"),
        ", expected U8 [rows, channels, height, width]: prepare the data again"));
  }
  data.pixels_ = *pixels;
  GEMINI_RETURN_IF_ERROR(opened.CheckMetadata("rows", absl::StrCat(data.num_rows())));
  GEMINI_ASSIGN_OR_RETURN(data.labels_, RowLabels::Open(opened, data.num_rows()));
  if (pixels->shape[1] > kMostChannels) {
    return absl::InvalidArgumentError(absl::StrCat(opened.path(), ": has images of ",
                                                   pixels->shape[1], " channels, at most ",
                                                   kMostChannels, " are taken"));
  }
  const auto channels = static_cast<size_t>(pixels->shape[1]);
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> rescale,
                          NumbersOf(opened, "rescale", 1, /*is_list=*/false));
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> mean,
                          NumbersOf(opened, "mean", channels, /*is_list=*/true));
  GEMINI_ASSIGN_OR_RETURN(const std::vector<double> std,
                          NumbersOf(opened, "std", channels, /*is_list=*/true));
  data.values_.resize(channels);
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const double value = (static_cast<double>(byte) * rescale[0] - mean[channel]) / std[channel];
      if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
        return absl::InvalidArgumentError(absl::StrCat(
            opened.path(), ": its rescale, mean and std make ", value, " of the byte ", byte,
            " in channel ", channel, ", expected numbers that fp32 has: prepare the data again"));
      }
      data.values_[channel][byte] = static_cast<float>(value);
    }
  }
  return data;
}

absl::Status ImageData::Read(int64_t index, absl::Span<float> image) const {
  GEMINI_RETURN_IF_ERROR(file_.CheckIndex(index, num_rows()));
  if (image.size() != static_cast<size_t>(image_elements())) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": room for ", image.size(),
                                                   " numbers, an image has ", image_elements()));
  }
  std::vector<uint8_t> bytes(image.size());
  GEMINI_RETURN_IF_ERROR(
      ReadElements(file_.reader(), pixels_, index * image_elements(), absl::MakeSpan(bytes)));
  const size_t of_channel = bytes.size() / values_.size();
  for (size_t i = 0; i < bytes.size(); ++i) image[i] = values_[i / of_channel][bytes[i]];
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ImageData::ReadLabels(int64_t index) const {
  GEMINI_RETURN_IF_ERROR(file_.CheckIndex(index, num_rows()));
  return labels_.Read(file_, index);
}

absl::Status ImageData::CheckRows(const RowNeeds& needs) {
  const ImageSpec& image = needs.image.value();
  const std::vector<int64_t> size = {image.channels, image.height, image.width};
  const std::vector<int64_t> ours = image_sizes();
  if (ours != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": has images of ", absl::StrJoin(ours, " x "),
                     " (channels, height, width), and the model takes ", absl::StrJoin(size, " x "),
                     ": prepare the data with --model of this model"));
  }
  labels_.set_num_labels(needs.task.num_labels);
  for (int64_t row = 0; row < num_rows(); ++row) {
    GEMINI_RETURN_IF_ERROR(labels_.Read(file_, row).status());
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
