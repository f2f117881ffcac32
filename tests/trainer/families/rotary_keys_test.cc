// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/rotary_keys.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/status_matchers.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

TEST(RotaryKeysTest, BothSpellingsOfRotaryPositionsAreRead) {
  constexpr const char* kNew = R"({"model_type":"llama","rope_parameters":{"rope_type":"llama3",
      "rope_theta":500000.0,"factor":8.0,"low_freq_factor":2.0,"high_freq_factor":5.0,
      "original_max_position_embeddings":64}})";
  constexpr const char* kOld = R"({"model_type":"llama","rope_theta":500000.0,"rope_scaling":{
      "rope_type":"llama3","factor":8.0,"low_freq_factor":2.0,"high_freq_factor":5.0,
      "original_max_position_embeddings":64}})";
  // Where both are there the old one counts, and at the top level what is there.
  constexpr const char* kBoth = R"({"model_type":"llama","rope_theta":500000.0,"rope_scaling":{
      "rope_type":"llama3","factor":8.0,"low_freq_factor":2.0,"high_freq_factor":5.0,
      "original_max_position_embeddings":32},"original_max_position_embeddings":64,
      "rope_parameters":{"rope_type":"default","rope_theta":7.0}})";
  // Without it, it is the number of positions.
  constexpr const char* kAbsent = R"({"model_type":"llama","rope_theta":500000.0,"rope_scaling":{
      "rope_type":"llama3","factor":8.0,"low_freq_factor":2.0,"high_freq_factor":5.0},
      "rope_parameters":{},"max_position_embeddings":64})";
  for (const char* json : {kNew, kOld, kBoth, kAbsent}) {
    SCOPED_TRACE(json);
    ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(json, "c"));
    const RotarySpec& rotary = *config.spec.kinds[0].rotary;
    EXPECT_EQ(rotary.scaling, RotarySpec::Scaling::kLlama3);
    EXPECT_EQ(rotary.theta, 500000);
    EXPECT_EQ(rotary.factor, 8);
    EXPECT_EQ(rotary.low_turns, 2);
    EXPECT_EQ(rotary.high_turns, 5);
    EXPECT_EQ(rotary.original_positions, 64);
  }
  ASSERT_OK_AND_ASSIGN(
      const HfConfig old,
      ParseHfConfig(R"({"model_type":"llama","rope_scaling":{"type":"linear","factor":4.0}})",
                    "c"));
  EXPECT_EQ(old.spec.kinds[0].rotary->scaling, RotarySpec::Scaling::kLinear);
  EXPECT_EQ(old.spec.kinds[0].rotary->factor, 4);
}

TEST(RotaryKeysTest, LongRopeHasTheAmplitudeOfTheGrownContext) {
  const auto rotary = [](absl::string_view keys, absl::string_view inside) {
    const absl::StatusOr<HfConfig> config = ParseHfConfig(
        absl::StrCat(R"({"model_type":"phi3","hidden_size":64,"num_attention_heads":16,)",
                     R"("max_position_embeddings":131072,)", keys, R"("rope_scaling":{)", inside,
                     R"("type":"longrope","short_factor":[1,1.5],"long_factor":[2,3]}})"),
        "c");
    EXPECT_OK(config);
    return config.ok() ? *config->spec.kinds[0].rotary : RotarySpec{};
  };
  const RotarySpec plain = rotary("", "");
  EXPECT_EQ(plain.scaling, RotarySpec::Scaling::kLongRope);
  EXPECT_THAT(plain.short_factors, ::testing::ElementsAre(1, 1.5));
  EXPECT_THAT(plain.long_factors, ::testing::ElementsAre(2, 3));
  EXPECT_EQ(plain.original_positions, 4096);
  EXPECT_DOUBLE_EQ(plain.amplitude, std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  // Its class has a number of its own, which goes before what the object says.
  EXPECT_EQ(rotary("", R"("original_max_position_embeddings":512,)").original_positions, 4096);
  EXPECT_EQ(rotary(R"("original_max_position_embeddings":512,)", "").original_positions, 512);
  EXPECT_DOUBLE_EQ(rotary("", R"("factor":2,)").amplitude,
                   std::sqrt(1 + std::log(2.0) / std::log(4096.0)));
  EXPECT_EQ(rotary("", R"("factor":0.5,)").amplitude, 1);
  EXPECT_EQ(rotary("", R"("attention_factor":1.25,)").amplitude, 1.25);
}

TEST(RotaryKeysTest, KindsOfBlocksOfGemma3AreRotatedByTheirOwnAngles) {
  constexpr const char* kOld = R"({"model_type":"gemma3_text","rope_theta":7.0,
      "rope_local_base_freq":5.0,"rope_scaling":{"rope_type":"linear","factor":8.0}})";
  constexpr const char* kNew = R"({"model_type":"gemma3_text","rope_parameters":{
      "full_attention":{"rope_theta":7.0,"rope_type":"linear","factor":8.0},
      "sliding_attention":{"rope_theta":5.0,"rope_type":"default"}}})";
  for (const char* json : {kOld, kNew}) {
    ASSERT_OK_AND_ASSIGN(const HfConfig config, ParseHfConfig(json, "c"));
    const RotarySpec& full = *config.spec.kinds[0].rotary;
    const RotarySpec& windowed = *config.spec.kinds[1].rotary;
    EXPECT_EQ(full.theta, 7);
    EXPECT_EQ(full.scaling, RotarySpec::Scaling::kLinear);
    EXPECT_EQ(full.factor, 8);
    EXPECT_EQ(windowed.theta, 5);
    EXPECT_EQ(windowed.scaling, RotarySpec::Scaling::kNone);
    EXPECT_TRUE(config.unknown_keys.empty());
  }
}

TEST(RotaryKeysTest, YarnHasTheAmplitudeOfItsFactorOrTheOneGiven) {
  const auto rotary = [](const std::string& keys) {
    const auto config = ParseHfConfig(
        absl::StrCat(R"({"model_type":"qwen3","rope_scaling":{"rope_type":"yarn","factor":4.0)",
                     keys, "}}"),
        "c");
    EXPECT_OK(config);
    return config.ok() ? *config->spec.kinds[0].rotary : RotarySpec{};
  };
  EXPECT_EQ(rotary("").scaling, RotarySpec::Scaling::kYarn);
  EXPECT_EQ(rotary("").low_turns, 1);
  EXPECT_EQ(rotary("").high_turns, 32);
  EXPECT_EQ(rotary("").original_positions, 32768);
  EXPECT_TRUE(rotary("").whole_pairs);
  EXPECT_DOUBLE_EQ(rotary("").amplitude, 1.138629436111989);
  EXPECT_EQ(rotary(R"(,"attention_factor":0.5)").amplitude, 0.5);
  // 0.7 alone says nothing: transformers needs both.
  EXPECT_DOUBLE_EQ(rotary(R"(,"mscale":0.7)").amplitude, 1.138629436111989);
  EXPECT_DOUBLE_EQ(rotary(R"(,"mscale":0.7,"mscale_all_dim":1.3)").amplitude,
                   (0.07 * std::log(4.0) + 1) / (0.13 * std::log(4.0) + 1));
  EXPECT_FALSE(rotary(R"(,"truncate":false)").whole_pairs);
  EXPECT_EQ(rotary(R"(,"mscale":1.0,"mscale_all_dim":0,"beta_fast":0)").high_turns, 32);
  EXPECT_EQ(rotary(R"(,"beta_fast":16,"beta_slow":2)").high_turns, 16);
  EXPECT_EQ(rotary(R"(,"beta_fast":16,"beta_slow":2)").low_turns, 2);
}

}  // namespace
}  // namespace gemini::trainer
