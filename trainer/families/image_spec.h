// SPDX-License-Identifier: Apache-2.0
// Describes the images that a model reads in place of tokens. Each is cut into patches, from left
// to right and from the top down; a linear layer makes a token of each, before which stands a
// learned one, the class token; and a table with a row for each of them is added. No Torch.
// Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv:2010.11929, section 3.1.
#pragma once
#include <cstdint>

namespace gemini::trainer {

// All sizes are >= 1. A patch's height divides an image's, and so for the width.
struct ImageSpec {
  int64_t channels = 1;
  int64_t height = 1;  // An image's, in pixels; so is the width.
  int64_t width = 1;
  int64_t patch_height = 1;
  int64_t patch_width = 1;

  int64_t num_patches() const { return (height / patch_height) * (width / patch_width); }
  int64_t patch_elements() const { return channels * patch_height * patch_width; }
};

}  // namespace gemini::trainer
