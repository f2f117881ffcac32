// SPDX-License-Identifier: Apache-2.0
// Digests that are expected were computed by Python's zlib.crc32.
#include "trainer/data/tokenizer_digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace gemini::trainer {
namespace {

using ::testing::Eq;
using ::testing::Optional;

TEST(TokenizerDigestTest, AVocabularyIsItsTokensInTheOrderOfTheirIds) {
  // The lines are "0 a", "1 b" and "2 🙂".
  for (const char* const json :
       {R"({"model": {"type": "BPE", "vocab": {"b": 1, "\ud83d\ude42": 2, "a": 0}}})",
        R"({"added_tokens": [{"id": 3, "content": "<s>"}],
            "model": {"vocab": {"a": 0, "b": 1, "🙂": 2}, "merges": []}})"}) {
    EXPECT_THAT(VocabularyDigest(json), Optional(Eq("244b93f8"))) << json;
  }
  EXPECT_THAT(VocabularyDigest(R"({"model": {"vocab": {"a": 0, "b": 7}}})"),
              Optional(Eq("44e51715")));
}

TEST(TokenizerDigestTest, AUnigramModelHasItsTokensInAList) {
  EXPECT_THAT(VocabularyDigest(R"({"model": {"vocab": [["<unk>", 0.0], ["▁a", -2.5]]}})"),
              Optional(Eq("14ef7eb7")));
}

TEST(TokenizerDigestTest, WhatIsNoTokenizerHasNone) {
  for (const char* const text :
       {"", "{", "[]", "7", "{}", R"({"model": 1})", R"({"model": {"vocab": "a"}})",
        R"({"model": {"vocab": {"a": "0"}}})", R"({"model": {"vocab": {"a": 0.5}}})",
        R"({"model": {"vocab": ["a"]}})", R"({"model": {"vocab": [[]]}})",
        R"({"model": {"vocab": [[1, 2]]}})"}) {
    EXPECT_EQ(VocabularyDigest(text), std::nullopt) << text;
  }
}

TEST(TokenizerDigestTest, ATemplateIsItsText) {
  EXPECT_EQ(TemplateDigest(""), "00000000");
  EXPECT_EQ(TemplateDigest("{{ messages }}\n"), "683846df");
}

TEST(TokenizerDigestTest, TheTemplateIsTheOneThatTransformersTakes) {
  using Files = std::vector<NamedText>;
  const NamedText config = {"tokenizer_config.json", R"({"chat_template": "of the config"})"};
  EXPECT_THAT(ChatTemplateOf(Files{config}), Optional(Eq("of the config")));
  EXPECT_THAT(ChatTemplateOf(Files{config, {"chat_template.jinja", "its\r\nown\r"}}),
              Optional(Eq("its\nown\n")));
  EXPECT_THAT(ChatTemplateOf(Files{{"tokenizer_config.json",
                                    R"({"chat_template": [{"name": "tool_use", "template": "a"},
                                        {"name": "default", "template": "b"}]})"}}),
              Optional(Eq("b")));
  for (const char* const none :
       {"", "{", "{}", R"({"chat_template": null})", R"({"chat_template": 7})",
        R"({"chat_template": [{"name": "tool_use", "template": "a"}]})",
        R"({"chat_template": ["a", {"name": "default"}, {"name": "default", "template": 1}]})"}) {
    EXPECT_EQ(ChatTemplateOf(Files{{"tokenizer_config.json", none}}), std::nullopt) << none;
  }
  EXPECT_EQ(ChatTemplateOf({}), std::nullopt);
}

}  // namespace
}  // namespace gemini::trainer
