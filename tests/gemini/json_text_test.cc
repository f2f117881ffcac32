// SPDX-License-Identifier: Apache-2.0
#include "gemini/json_text.h"

#include <cstdint>

#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

TEST(JsonTextTest, WhatIsNoUtf8IsReplaced) {
  const nlohmann::json json = {{"name", "a\xff\xc3\xa4"}};
  EXPECT_EQ(JsonText(json, /*indent=*/-1), "{\"name\":\"a\xef\xbf\xbd\xc3\xa4\"}");
  EXPECT_EQ(JsonText(json), "{\n  \"name\": \"a\xef\xbf\xbd\xc3\xa4\"\n}");
  nlohmann::ordered_json ordered;
  ordered["b"] = "\xff";
  ordered["a"] = 1;
  EXPECT_EQ(JsonText(ordered, /*indent=*/-1), "{\"b\":\"\xef\xbf\xbd\",\"a\":1}");
}

TEST(JsonTextTest, WhatAnObjectHasNotIsAnError) {
  const auto read = [](const nlohmann::json& json) -> absl::StatusOr<int64_t> {
    const int64_t number = json.at("number");
    if (number < 0) return absl::OutOfRangeError("below zero");
    return number;
  };
  EXPECT_THAT(ReadJsonObject(R"({"number": 7})", read), IsOkAndHolds(7));
  EXPECT_THAT(ReadJsonObject(R"({"number": -7})", read),
              StatusIs(absl::StatusCode::kOutOfRange, "below zero"));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ReadJsonObject("{}", read), StatusIs(kInvalid, HasSubstr("number")));
  EXPECT_THAT(ReadJsonObject(R"({"number": "7"})", read), StatusIs(kInvalid, HasSubstr("string")));
  EXPECT_THAT(ReadJsonObject("[7]", read), StatusIs(kInvalid, HasSubstr("no JSON object")));
  EXPECT_THAT(ReadJsonObject("{", read), StatusIs(kInvalid, HasSubstr("parse error")));
}

}  // namespace
}  // namespace gemini
