// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/training_data.h"

#include "absl/strings/match.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<TrainingData> TrainingData::Open(const std::string& path, int64_t sequence_tokens) {
  if (absl::EndsWith(path, ".safetensors")) {
    GEMINI_ASSIGN_OR_RETURN(ExampleData examples, ExampleData::Open(path));
    return TrainingData(std::move(examples));
  }
  GEMINI_ASSIGN_OR_RETURN(TokenData text, TokenData::Open(path, sequence_tokens));
  return TrainingData(std::move(text));
}

int64_t TrainingData::num_sequences() const {
  return std::visit([](const auto& file) { return file.num_sequences(); }, file_);
}

int64_t TrainingData::sequence_tokens() const {
  return std::visit([](const auto& file) { return file.sequence_tokens(); }, file_);
}

bool TrainingData::has_documents() const {
  const auto* const examples = std::get_if<ExampleData>(&file_);
  return examples != nullptr && examples->has_documents();
}

absl::StatusOr<std::vector<int64_t>> TrainingData::ReadDocuments(int64_t index) const {
  if (!has_documents()) return std::vector<int64_t>{sequence_tokens()};
  return std::get<ExampleData>(file_).ReadDocuments(index);
}

absl::Status TrainingData::Read(int64_t index, absl::Span<int64_t> tokens,
                                absl::Span<int64_t> labels) const {
  const auto* const examples = std::get_if<ExampleData>(&file_);
  return examples != nullptr ? examples->Read(index, tokens, labels)
                             : std::get<TokenData>(file_).Read(index, tokens);
}

absl::StatusOr<int64_t> TrainingData::CountLabels(int64_t index) const {
  const auto* const examples = std::get_if<ExampleData>(&file_);
  if (examples != nullptr) return examples->CountAnswers(index);
  return sequence_tokens() - 1;
}

absl::StatusOr<TokenFingerprint> TrainingData::Fingerprint() const {
  return std::visit([](const auto& file) { return file.Fingerprint(); }, file_);
}

absl::Status TrainingData::CheckRows(int64_t vocab_size, bool takes_padding) {
  auto* const examples = std::get_if<ExampleData>(&file_);
  return examples != nullptr ? examples->CheckRows(vocab_size, takes_padding)
                             : std::get<TokenData>(file_).CheckVocabulary(vocab_size);
}

}  // namespace gemini::trainer
