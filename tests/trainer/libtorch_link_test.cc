// SPDX-License-Identifier: Apache-2.0
// What LibTorch's libraries export must not take the place of the C++ library's own.
#include <unistd.h>

#include <filesystem>
#include <string>

#include "ATen/ops/zeros.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(LibTorchLinkTest, ATreeIsRemovedBesideTorch) {
  ASSERT_EQ(at::zeros({1}).numel(), 1);  // LibTorch is really linked.
  std::string root = ::testing::TempDir() + "/tree-XXXXXX";
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  ASSERT_TRUE(std::filesystem::create_directories(root + "/a/b"));
  EXPECT_EQ(std::filesystem::remove_all(root), 3u);
  EXPECT_FALSE(std::filesystem::exists(root));
}

}  // namespace
}  // namespace gemini::trainer
