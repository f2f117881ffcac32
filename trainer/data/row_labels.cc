// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/row_labels.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

absl::StatusOr<std::vector<std::string>> NamesOf(const RowFile& file, int64_t num_labels) {
  GEMINI_ASSIGN_OR_RETURN(const std::string text, file.Metadata("names"));
  std::vector<std::string> names;
  if (text.empty()) return names;
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (list.is_array() && static_cast<int64_t>(list.size()) == num_labels &&
      std::ranges::all_of(list, [](const Json& name) { return name.is_string(); })) {
    for (const Json& name : list) names.push_back(name.get<std::string>());
    return names;
  }
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": its names are no JSON list of ",
                                                 num_labels, " texts: prepare the data again"));
}

// Classes have no fraction.
std::string AsText(float value) {
  return std::abs(value) < 1e9F && value == std::trunc(value)
             ? absl::StrCat(static_cast<int64_t>(value))
             : absl::StrCat(value);
}

}  // namespace

absl::StatusOr<RowLabels> RowLabels::Open(const RowFile& file, int64_t num_rows) {
  RowLabels labels;
  labels.task_.kind = file.task();
  GEMINI_ASSIGN_OR_RETURN(const std::string problem, file.Metadata("problem_type"));
  const auto known = std::ranges::find(kProblemNames, absl::string_view(problem));
  if (known == std::end(kProblemNames)) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": its problem_type is ",
                                                   PrintableName(problem), ", expected one of ",
                                                   absl::StrJoin(kProblemNames, ", ")));
  }
  labels.task_.problem = static_cast<ProblemType>(known - std::begin(kProblemNames));
  GEMINI_ASSIGN_OR_RETURN(labels.task_.num_labels, file.Number("num_labels", 1, kMostLabels));
  GEMINI_ASSIGN_OR_RETURN(labels.task_.names, NamesOf(file, labels.task_.num_labels));
  const bool is_single = labels.task_.problem == ProblemType::kSingleLabel;
  GEMINI_ASSIGN_OR_RETURN(
      labels.labels_,
      is_single ? file.Find("labels", SafetensorsDtype::kI32, {num_rows})
                : file.Find("labels", SafetensorsDtype::kF32, {num_rows, labels.task_.num_labels}));
  return labels;
}

absl::StatusOr<std::vector<float>> RowLabels::Read(const RowFile& file, int64_t row) const {
  std::vector<float> values;
  if (task_.problem == ProblemType::kSingleLabel) {
    int32_t label = 0;
    GEMINI_RETURN_IF_ERROR(ReadElements(file.reader(), labels_, row, absl::MakeSpan(&label, 1)));
    values = {static_cast<float>(label)};  // Classes are few enough to be exact.
  } else {
    values.resize(static_cast<size_t>(task_.num_labels));
    GEMINI_RETURN_IF_ERROR(
        ReadElements(file.reader(), labels_, row * task_.num_labels, absl::MakeSpan(values)));
  }
  if (num_labels_ > 0) GEMINI_RETURN_IF_ERROR(Check(file, row, values));
  return values;
}

absl::Status RowLabels::Check(const RowFile& file, int64_t row,
                              absl::Span<const float> values) const {
  for (const float value : values) {
    const bool is_right = task_.problem == ProblemType::kSingleLabel
                              ? value >= 0 && value < static_cast<float>(num_labels_)
                          : task_.problem == ProblemType::kMultiLabel ? value == 0 || value == 1
                                                                      : std::isfinite(value);
    if (is_right) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": row ", row, " has the label ", AsText(value), ", expected ",
                     task_.problem == ProblemType::kSingleLabel
                         ? absl::StrCat("one of the model's ", num_labels_, " labels, from 0 to ",
                                        num_labels_ - 1)
                     : task_.problem == ProblemType::kMultiLabel ? "0 or 1"
                                                                 : "a number"));
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
