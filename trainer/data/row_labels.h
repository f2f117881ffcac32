// SPDX-License-Identifier: Apache-2.0
// Reads the labels of the rows of a file:
//     labels  I32 [rows]              of a single label: its class
//             F32 [rows, num_labels]  of several labels 0 or 1, of a regression numbers
// The metadata say what they are: "problem_type", as transformers names it, "num_labels", and
// "names", a JSON list, or nothing.
// Blocks, Owner, Errors: as of RowFile.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/row_file.h"

namespace gemini::trainer {

class RowLabels {
 public:
  // `file`: of so many rows, from which all that is read of the labels is.
  static absl::StatusOr<RowLabels> Open(const RowFile& file, int64_t num_rows);

  // What the labels are, of the file's task.
  const TaskSpec& task() const { return task_; }
  // Says how many labels the model has: labels that are read from now on are held against it.
  void set_num_labels(int64_t num_labels) { num_labels_ = num_labels; }
  // Returns the labels of a row that there is: the class of a single label, else num_labels
  // numbers.
  absl::StatusOr<std::vector<float>> Read(const RowFile& file, int64_t row) const;

 private:
  // `values`: of one row.
  absl::Status Check(const RowFile& file, int64_t row, absl::Span<const float> values) const;

  TaskSpec task_;
  SafetensorsTensor labels_;
  int64_t num_labels_ = 0;  // 0: nobody has said it.
};

}  // namespace gemini::trainer
