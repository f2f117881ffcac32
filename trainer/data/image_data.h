// SPDX-License-Identifier: Apache-2.0
// Reads images that have labels, as tools/prepare_data.py makes them of folders of images.
//     pixels  U8 [rows, channels, height, width]
// stands beside their labels (row_labels.h). The metadata say what a model takes in place of a
// channel's byte x: (x * rescale - mean) / std, where "mean" and "std" are JSON lists with a number
// for each channel, and "rescale" is one for all.
// Blocks, Owner, Errors: as of RowFile.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/row_file.h"
#include "trainer/data/row_labels.h"
#include "trainer/data/row_needs.h"
#include "trainer/data/token_fingerprint.h"

namespace gemini::trainer {

class ImageData {
 public:
  // Takes an open file and checks the rest of its header.
  static absl::StatusOr<ImageData> Open(RowFile file);

  int64_t num_rows() const { return pixels_.shape[0]; }
  // Returns the channels, the height and the width of an image.
  std::vector<int64_t> image_sizes() const {
    return {pixels_.shape.begin() + 1, pixels_.shape.end()};
  }
  // Returns their product.
  int64_t image_elements() const { return pixels_.num_elements / num_rows(); }
  // What the labels are.
  const TaskSpec& task() const { return labels_.task(); }

  // Reads image `index` (0 to num_rows - 1) as a model takes it, [channels, height, width].
  absl::Status Read(int64_t index, absl::Span<float> image) const;
  // As of RowLabels.
  absl::StatusOr<std::vector<float>> ReadLabels(int64_t index) const;

  // Reads all labels. `needs` are of a model of images. INVALID_ARGUMENT: a label that the model
  // does not have, or the images are of another size than the model's.
  absl::Status CheckRows(const RowNeeds& needs);

  absl::StatusOr<TokenFingerprint> Fingerprint() const {
    return file_.FingerprintOf(pixels_.num_elements);
  }

 private:
  explicit ImageData(RowFile file) : file_(std::move(file)) {}

  RowFile file_;
  RowLabels labels_;
  SafetensorsTensor pixels_;
  std::vector<std::array<float, 256>> values_;  // Of each channel, what stands for a byte.
};

}  // namespace gemini::trainer
