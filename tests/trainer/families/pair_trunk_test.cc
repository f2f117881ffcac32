// SPDX-License-Identifier: Apache-2.0
// What the family of pair trunks makes of its config.json.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PairTrunkFamilyTest, AbsentKeysHaveThePapersSizes) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(R"({"model_type":"pair_trunk"})", "c"));
  const ModelSpec& spec = config.spec;
  ASSERT_TRUE(spec.pair_trunk.has_value());
  const PairTrunkSpec& trunk = *spec.pair_trunk;
  EXPECT_EQ(spec.vocab_size, 23);
  EXPECT_EQ(spec.max_sequence, 256);
  EXPECT_EQ(spec.width, 256);
  EXPECT_EQ(spec.num_blocks, 48);
  EXPECT_EQ(trunk.num_sequences, 128);
  EXPECT_EQ(trunk.msa_width, 256);
  EXPECT_EQ(trunk.pair_width, 128);
  EXPECT_EQ(trunk.msa_heads.num_heads, 8);
  EXPECT_EQ(trunk.msa_heads.head_size, 32);
  EXPECT_EQ(trunk.triangle_heads.num_heads, 4);
  EXPECT_EQ(trunk.triangle_heads.head_size, 32);
  EXPECT_EQ(trunk.triangle_width, 128);
  EXPECT_EQ(trunk.outer_width, 32);
  EXPECT_EQ(trunk.transition_factor, 4);
  EXPECT_EQ(trunk.relative_positions, 32);
  EXPECT_EQ(trunk.num_bins, 64);
  EXPECT_EQ(trunk.norm_epsilon, 1e-5);
  EXPECT_EQ(spec.initial_deviation, 0.02);
  EXPECT_EQ(spec.task.kind, TaskKind::kMasked);
  EXPECT_EQ(config.model_class, "PairTrunkForMaskedMsa");
  EXPECT_THAT(spec.ElementsBetweenBlocks(10), ElementsAre(128 * 10 * 256, 10 * 10 * 128));
  EXPECT_FALSE(spec.has_projections());
  EXPECT_FALSE(spec.embeddings_need_values());
}

TEST(PairTrunkFamilyTest, KeysAreHonoured) {
  ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(R"({"model_type":"pair_trunk",
      "vocab_size":11, "num_sequences":3, "max_position_embeddings":8, "msa_width":12,
      "pair_width":9, "num_hidden_layers":2, "msa_num_heads":4, "msa_head_size":5,
      "triangle_num_heads":6, "triangle_head_size":7, "triangle_width":10, "outer_width":13,
      "transition_factor":14, "num_bins":15, "relative_positions":16, "layer_norm_eps":0.25,
      "initializer_range":0.5, "architectures":["PairTrunkForDistogram"]})",
                                                            "c"));
  const ModelSpec& spec = config.spec;
  const PairTrunkSpec& trunk = *spec.pair_trunk;
  EXPECT_THAT(
      (std::vector<int64_t>{
          spec.vocab_size, trunk.num_sequences, spec.max_sequence, trunk.msa_width,
          trunk.pair_width, spec.num_blocks, trunk.msa_heads.num_heads, trunk.msa_heads.head_size,
          trunk.triangle_heads.num_heads, trunk.triangle_heads.head_size, trunk.triangle_width,
          trunk.outer_width, trunk.transition_factor, trunk.num_bins, trunk.relative_positions}),
      ElementsAre(11, 3, 8, 12, 9, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16));
  EXPECT_EQ(trunk.norm_epsilon, 0.25);
  EXPECT_EQ(spec.initial_deviation, 0.5);
  EXPECT_EQ(spec.task.kind, TaskKind::kDistogram);
  EXPECT_EQ(spec.task.num_labels, 15);
  EXPECT_THAT(config.unknown_keys, ::testing::IsEmpty());
}

TEST(PairTrunkFamilyTest, EachTaskHasItsHead) {
  const std::string text = R"({"model_type":"pair_trunk"})";
  ASSERT_OK_AND_ASSIGN(const HfConfig masked, ParseHfConfig(text, "c", {.name = "masked"}));
  EXPECT_TRUE(masked.spec.files.IsOfOwnHead("masked_msa_head.weight"));
  EXPECT_TRUE(masked.spec.files.IsOfAnotherTask("distogram_head.bias"));
  EXPECT_TRUE(masked.is_new_task);
  ASSERT_OK_AND_ASSIGN(const HfConfig bins, ParseHfConfig(text, "c", {.name = "distogram"}));
  EXPECT_TRUE(bins.spec.files.IsOfOwnHead("distogram_head.weight"));
  EXPECT_TRUE(bins.spec.files.IsOfAnotherTask("masked_msa_head.bias"));
  EXPECT_EQ(bins.model_class, "PairTrunkForDistogram");
  EXPECT_THAT(ParseHfConfig(text, "c", {.name = "causal"}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("pair_trunk, which has masked, distogram")));
}

// With these bounds products of sizes are numbers.
TEST(PairTrunkFamilyTest, SizesThatAreTooLargeAreRefused) {
  for (const auto& [key, most] :
       std::vector<std::pair<std::string, int>>{{"vocab_size", 65536},
                                                {"num_sequences", 4096},
                                                {"max_position_embeddings", 4096},
                                                {"msa_width", 8192},
                                                {"pair_width", 8192},
                                                {"num_hidden_layers", 65536},
                                                {"msa_num_heads", 64},
                                                {"msa_head_size", 1024},
                                                {"triangle_num_heads", 64},
                                                {"triangle_head_size", 1024},
                                                {"triangle_width", 8192},
                                                {"outer_width", 256},
                                                {"transition_factor", 16},
                                                {"relative_positions", 8192},
                                                {"num_bins", 1024}}) {
    const auto with = [&key = key](int value) {
      return ParseHfConfig(absl::StrCat(R"({"model_type":"pair_trunk",")", key, "\":", value, "}"),
                           "c");
    };
    EXPECT_OK(with(most)) << key;
    EXPECT_THAT(with(most + 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat(key, " ", most + 1, " is above the most"))));
    EXPECT_THAT(with(0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  }
}

}  // namespace
}  // namespace gemini::trainer
