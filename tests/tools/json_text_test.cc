// SPDX-License-Identifier: Apache-2.0
#include "tools/json_text.h"

#include "gtest/gtest.h"

namespace gemini::tools {
namespace {

TEST(JsonTextTest, WhatIsNoUtf8IsReplaced) {
  const nlohmann::json json = {{"name", "a\xff\xc3\xa4"}};
  EXPECT_EQ(JsonText(json, /*indent=*/-1), "{\"name\":\"a\xef\xbf\xbd\xc3\xa4\"}");
  EXPECT_EQ(JsonText(json), "{\n  \"name\": \"a\xef\xbf\xbd\xc3\xa4\"\n}");
}

}  // namespace
}  // namespace gemini::tools
