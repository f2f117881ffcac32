// SPDX-License-Identifier: Apache-2.0
// Digests of what turns text into tokens: of a vocabulary and of a chat template. Prepared rows
// have them in their metadata, and a run holds them against the files of its model.
// Digest: a CRC-32 as zlib's, in 8 hexadecimal digits. It finds mistakes, and no forgery.
//         tools/data/model_tokenizer.py computes the same.
// Pure:   no I/O. Text that is not what it should be has no digest.
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gemini::trainer {

// Returns the digest of a tokenizer.json's vocabulary without the tokens that were added to it: of
// a line "ID TOKEN" for each token, in the order of the ids.
std::optional<std::string> VocabularyDigest(const std::string& tokenizer_json);

// Returns the digest of a chat template's text.
std::string TemplateDigest(absl::string_view text);

// A file's name and content.
using NamedText = std::pair<std::string, std::string>;

// Returns the chat template that transformers takes for a model with these files, if it has one.
std::optional<std::string> ChatTemplateOf(absl::Span<const NamedText> files);

}  // namespace gemini::trainer
