// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/training_data.h"

#include "absl/strings/match.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<TrainingData> TrainingData::Open(const std::string& path, int64_t sequence_tokens) {
  if (!absl::EndsWith(path, ".safetensors")) {
    GEMINI_ASSIGN_OR_RETURN(TokenData text, TokenData::Open(path, sequence_tokens));
    return TrainingData(std::move(text));
  }
  GEMINI_ASSIGN_OR_RETURN(RowFile file, RowFile::Open(path));
  if (file.task() == TaskKind::kImageClassification) {
    GEMINI_ASSIGN_OR_RETURN(ImageData images, ImageData::Open(std::move(file)));
    return TrainingData(std::move(images));
  }
  if (AlignmentData::IsOne(file)) {
    GEMINI_ASSIGN_OR_RETURN(AlignmentData alignments, AlignmentData::Open(std::move(file)));
    return TrainingData(std::move(alignments));
  }
  GEMINI_ASSIGN_OR_RETURN(TokenRows rows, TokenRows::Open(std::move(file)));
  if (rows.task() == TaskKind::kSequenceClassification) {
    GEMINI_ASSIGN_OR_RETURN(LabeledData labeled, LabeledData::Open(std::move(rows)));
    return TrainingData(std::move(labeled));
  }
  GEMINI_ASSIGN_OR_RETURN(ExampleData examples, ExampleData::Open(std::move(rows)));
  return TrainingData(std::move(examples));
}

absl::StatusOr<TaskSpec> TrainingData::TaskOf(const std::string& path) {
  if (!absl::EndsWith(path, ".safetensors")) return TaskSpec();
  GEMINI_ASSIGN_OR_RETURN(const TrainingData data, Open(path, /*sequence_tokens=*/0));
  return data.task();
}

const TokenRows* TrainingData::rows() const {
  if (examples() != nullptr) return &examples()->rows();
  return labeled() != nullptr ? &labeled()->rows() : nullptr;
}

TaskSpec TrainingData::task() const {
  if (images() != nullptr) return images()->task();
  if (alignments() != nullptr) return alignments()->task();
  if (labeled() != nullptr) return labeled()->task();
  return {.kind = rows() != nullptr ? rows()->task() : TaskKind::kCausal};
}

int64_t TrainingData::num_sequences() const {
  if (images() != nullptr) return images()->num_rows();
  if (alignments() != nullptr) return alignments()->num_rows();
  return rows() != nullptr ? rows()->num_rows() : text().num_sequences();
}

int64_t TrainingData::sequence_tokens() const {
  if (alignments() != nullptr) return alignments()->num_residues();
  return rows() != nullptr ? rows()->sequence_tokens() : text().sequence_tokens();
}

absl::StatusOr<std::vector<int64_t>> TrainingData::ReadDocuments(int64_t index) const {
  if (!has_documents()) return std::vector<int64_t>{sequence_tokens()};
  return rows()->ReadDocuments(index);
}

std::string TrainingData::Metadata(const std::string& key) const {
  if (rows() == nullptr) return "";
  const auto& metadata = rows()->reader().metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

absl::StatusOr<TokenFingerprint> TrainingData::Fingerprint() const {
  if (images() != nullptr) return images()->Fingerprint();
  if (alignments() != nullptr) return alignments()->Fingerprint();
  return rows() != nullptr ? rows()->Fingerprint() : text().Fingerprint();
}

absl::Status TrainingData::CheckRows(const RowNeeds& needs, bool sees_padding) {
  if (auto* const examples = std::get_if<ExampleData>(&file_)) {
    GEMINI_RETURN_IF_ERROR(examples->CheckRows(needs));
    has_documents_ = rows()->is_packed() || (sees_padding && examples->has_padding());
    return absl::OkStatus();
  }
  if (auto* const labeled = std::get_if<LabeledData>(&file_)) {
    GEMINI_RETURN_IF_ERROR(labeled->CheckRows(needs));
    // Without padding a text ends where its row does.
    has_documents_ = labeled->has_padding();
    return absl::OkStatus();
  }
  if (auto* const images = std::get_if<ImageData>(&file_)) return images->CheckRows(needs);
  if (auto* const alignments = std::get_if<AlignmentData>(&file_)) {
    return alignments->CheckRows(needs);
  }
  return std::get<TokenData>(file_).CheckVocabulary(needs.vocab_size);
}

}  // namespace gemini::trainer
