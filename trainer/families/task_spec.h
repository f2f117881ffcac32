// SPDX-License-Identifier: Apache-2.0
// Describes what a run learns: its task, by which the model's head, its loss and its data are
// chosen. No Torch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gemini::trainer {

enum class TaskKind : uint8_t {
  kCausal,  // Each token is predicted from those before it.
  // Some tokens, or residues of an alignment, are hidden, and predicted from all others.
  kMasked,
  kSequenceClassification,  // A sequence has labels.
  kImageClassification,     // An image has labels.
  kDistogram,               // Of each pair of residues a bin of distances is predicted.
};

// What the labels of a sequence or of an image are. The loss of each is that of transformers, which
// names them so in the key "problem_type" of config.json.
enum class ProblemType : uint8_t {
  kSingleLabel,  // One of num_labels classes: cross entropy.
  kMultiLabel,   // Any of them: binary cross entropy of each.
  kRegression,   // num_labels numbers: the mean squared error.
};

inline constexpr absl::string_view kTaskNames[] = {"causal", "masked", "sequence-classification",
                                                   "image-classification", "distogram"};
inline constexpr absl::string_view kProblemNames[] = {"single_label_classification",
                                                      "multi_label_classification", "regression"};

inline absl::string_view NameOf(TaskKind kind) { return kTaskNames[static_cast<int>(kind)]; }
inline absl::string_view NameOf(ProblemType type) { return kProblemNames[static_cast<int>(type)]; }

// A bound on what a file may ask memory for, far above what classifiers have.
inline constexpr int64_t kMostLabels = 1 << 16;

struct TaskSpec {
  TaskKind kind = TaskKind::kCausal;
  // These are of classifications. A distogram has one of num_labels bins.
  ProblemType problem = ProblemType::kSingleLabel;
  int64_t num_labels = 0;
  std::vector<std::string> names = {};  // One a label; empty where nobody named them.

  bool predicts_tokens() const { return kind == TaskKind::kCausal || kind == TaskKind::kMasked; }
  bool is_classification() const {
    return kind == TaskKind::kSequenceClassification || kind == TaskKind::kImageClassification;
  }
  // Whether the head asks where the text of a row ends, so that padding makes documents of rows.
  bool asks_where_texts_end() const { return kind == TaskKind::kSequenceClassification; }
  bool operator==(const TaskSpec&) const = default;
};

}  // namespace gemini::trainer
