// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/weight_names.h"

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(WeightNamesTest, AFileMayLackTheRootOrItsFirstWords) {
  const WeightNames names = {.root = "model.decoder.", .embedding = "model.decoder.e.weight"};
  for (const char* tensor : {"model.decoder.layers.0.fc1.weight", "decoder.layers.0.fc1.weight",
                             "layers.0.fc1.weight"}) {
    EXPECT_EQ(names.ParameterOf(tensor), "model.decoder.layers.0.fc1.weight") << tensor;
  }
  EXPECT_EQ(names.ParameterOf("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(WeightNames{}.ParameterOf("layers.0.fc1.weight"), "layers.0.fc1.weight");
  // A word that only begins like the root's is another name.
  EXPECT_EQ(names.ParameterOf("decoders.x"), "model.decoder.decoders.x");
}

TEST(WeightNamesTest, BuffersOfOldFilesAreIgnored) {
  const WeightNames names = {.root = "transformer.", .ignored_endings = {".attn.bias"}};
  EXPECT_TRUE(names.IsIgnored("h.0.attn.bias"));
  EXPECT_FALSE(names.IsIgnored("h.0.attn.c_attn.bias"));
}

}  // namespace
}  // namespace gemini::trainer
