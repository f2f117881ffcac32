// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/tokenizer_digest.h"

#include <algorithm>
#include <boost/crc.hpp>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

Json Parse(const std::string& text, const Json::parser_callback_t& keeps = nullptr) {
  return Json::parse(text, keeps, /*allow_exceptions=*/false);
}

// Keeps the vocabulary of a tokenizer.json alone: merges would take ten times the file's bytes.
bool IsOnTheWayToTheVocabulary(int depth, Json::parse_event_t event, Json& parsed) {
  if (event != Json::parse_event_t::key) return true;
  return depth > 2 || parsed == (depth == 1 ? "model" : "vocab");
}

const Json* Find(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

std::string DigestOf(const boost::crc_32_type& sum) {
  return absl::StrFormat("%08x", static_cast<uint32_t>(sum.checksum()));
}

// Returns the tokens of a vocabulary with their ids: of an object by token, as BPE and WordPiece
// have it, or of a list of tokens with their scores, as a unigram model has it.
std::optional<std::vector<std::pair<int64_t, std::string>>> TokensOf(const Json& vocabulary) {
  std::vector<std::pair<int64_t, std::string>> tokens;
  if (vocabulary.is_object()) {
    for (const auto& [token, id] : vocabulary.items()) {
      if (!id.is_number_integer()) return std::nullopt;
      tokens.emplace_back(id.get<int64_t>(), token);
    }
    std::ranges::sort(tokens);
    return tokens;
  }
  if (!vocabulary.is_array()) return std::nullopt;
  for (const Json& token : vocabulary) {
    if (!token.is_array() || token.empty() || !token[0].is_string()) return std::nullopt;
    tokens.emplace_back(static_cast<int64_t>(tokens.size()), token[0].get<std::string>());
  }
  return tokens;
}

}  // namespace

std::optional<std::string> VocabularyDigest(const std::string& tokenizer_json) {
  const Json json = Parse(tokenizer_json, IsOnTheWayToTheVocabulary);
  const Json* const model = Find(json, "model");
  const Json* const vocabulary = model == nullptr ? nullptr : Find(*model, "vocab");
  if (vocabulary == nullptr) return std::nullopt;
  const auto tokens = TokensOf(*vocabulary);
  if (!tokens.has_value()) return std::nullopt;
  boost::crc_32_type sum;
  for (const auto& [id, token] : *tokens) {
    const std::string line = absl::StrCat(id, " ", token, "\n");
    sum.process_bytes(line.data(), line.size());
  }
  return DigestOf(sum);
}

std::string TemplateDigest(absl::string_view text) {
  boost::crc_32_type sum;
  sum.process_bytes(text.data(), text.size());
  return DigestOf(sum);
}

std::optional<std::string> ChatTemplateOf(absl::Span<const NamedText> files) {
  const auto find = [&](absl::string_view name) {
    const auto found = std::ranges::find(files, name, &NamedText::first);
    return found == files.end() ? nullptr : &found->second;
  };
  if (const std::string* const text = find("chat_template.jinja"); text != nullptr) {
    // Python reads any end of a line as "\n".
    return absl::StrReplaceAll(*text, {{"\r\n", "\n"}, {"\r", "\n"}});
  }
  const std::string* const config = find("tokenizer_config.json");
  if (config == nullptr) return std::nullopt;
  const Json json = Parse(*config);
  const Json* const value = Find(json, "chat_template");
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) return std::nullopt;
  for (const Json& one : *value) {
    const Json* const name = Find(one, "name");
    const Json* const text = Find(one, "template");
    if (name != nullptr && *name == "default" && text != nullptr && text->is_string()) {
      return text->get<std::string>();
    }
  }
  return std::nullopt;
}

}  // namespace gemini::trainer
