// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/trainer_state.h"

#include <cmath>
#include <random>
#include <string>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TrainerState Some() {
  TrainerState state;
  state.step = 5;
  state.sequences_taken = int64_t{1} << 50;
  state.tensor_steps = {{"transformer.wte.weight", 5}, {"unused", 0}};
  state.first_loss = 1.0 / 3;
  state.last_loss = 1.0 / 7;
  state.evaluated_step = 4;
  state.loss_scale = {.value = 512, .steps_since = 7};
  state.data = TokenFingerprint{
      .num_tokens = int64_t{1} << 40, .file_bytes = 1234, .ends_crc32c = 0xfedcba98};
  return state;
}

TEST(TrainerState, SurvivesBeingWrittenAndReadBack) {
  EXPECT_THAT(ParseTrainerState(ToJson(Some()), "x"), IsOkAndHolds(Some()));
}

TEST(TrainerState, ALossThatIsNoNumberDoesNotMakeItUnreadable) {
  TrainerState state = Some();
  state.first_loss = std::nan("");
  EXPECT_OK(ParseTrainerState(ToJson(state), "x"));
}

TEST(TrainerState, WhatIsMissingOrWrongIsNamed) {
  EXPECT_THAT(ParseTrainerState("", "a.json"), StatusIs(kInvalid, HasSubstr("a.json: not a JSON")));
  EXPECT_THAT(ParseTrainerState("{}", "x"), StatusIs(kInvalid, HasSubstr("no state of a run")));
  EXPECT_THAT(ParseTrainerState("{\"format\": 9}", "x"), StatusIs(kInvalid, HasSubstr("format 9")));
  const std::string good = ToJson(Some());
  for (const char* key : {"step", "sequences_taken", "first_loss", "tensor_steps"}) {
    std::string bad = good;
    const std::string quoted = std::string("\"") + key + "\"";
    bad.replace(bad.find(quoted), quoted.size(), "\"other\"");
    EXPECT_THAT(ParseTrainerState(bad, "x"), StatusIs(kInvalid, HasSubstr(key)));
  }
  std::string bad = good;
  bad.replace(bad.find("\"step\": 5"), 9, "\"step\":-5");
  EXPECT_THAT(ParseTrainerState(bad, "x"), StatusIs(kInvalid));
}

// Property: no file, however spoiled, does more than be refused.
TEST(TrainerState, SpoiledFilesAreParsedOrRefused) {
  std::mt19937 random(/*seed=*/5);
  const std::string good = ToJson(Some());
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good.substr(0, random() % (good.size() + 1));
    for (int change = 0; change < 2 && !text.empty(); ++change) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    ParseTrainerState(text, "x").status().IgnoreError();
  }
}

// Older files hold what dropout then drew from.
TEST(TrainerState, TheStateOfAGeneratorIsLeftOut) {
  std::string text = ToJson(Some());
  text.insert(text.find('{') + 1, "\"random_state\": \"00ff\",");
  EXPECT_THAT(ParseTrainerState(text, "x"), IsOkAndHolds(Some()));
}

TEST(TrainerState, AFileOfBeforeDataWasKeptHasNone) {
  TrainerState state = Some();
  state.data.reset();
  EXPECT_THAT(ParseTrainerState(ToJson(state), "x"), IsOkAndHolds(state));
  std::string text = ToJson(Some());
  text.replace(text.find("1234"), 4, "null");
  EXPECT_THAT(ParseTrainerState(text, "x"), StatusIs(kInvalid, HasSubstr("data")));
}

TEST(TrainerState, AFileOfBeforeEvaluationsWereCountedHasThemDone) {
  std::string text = ToJson(Some());
  for (const char* key : {"last_loss", "evaluated_step"}) {
    const size_t line = text.find(key);
    ASSERT_NE(line, std::string::npos);
    text.erase(line - 1, text.find('\n', line) - line + 1);
  }
  ASSERT_OK_AND_ASSIGN(const TrainerState state, ParseTrainerState(text, "x"));
  EXPECT_EQ(state.evaluated_step, state.step);
  EXPECT_EQ(state.last_loss, state.first_loss);
}

}  // namespace
}  // namespace gemini::trainer
