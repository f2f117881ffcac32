// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_report.h"

#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gemini::trainer {
namespace {

constexpr size_t kMostText = 4096;
constexpr size_t kLeastNumbers = 3;

}  // namespace

std::string ToText(const RankReport& report) {
  std::string text = absl::StrCat(report.beat, " ", report.awaited, " ", report.num_messages);
  for (const int64_t issued : report.num_issued) absl::StrAppend(&text, " ", issued);
  return text;
}

RankReport ParseRankReport(absl::string_view text, int64_t num_ranks) {
  if (text.size() > kMostText) return {};
  std::vector<int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back())) return {};
  }
  if (numbers.size() < kLeastNumbers) return {};
  RankReport report = {.beat = numbers[0], .awaited = numbers[1], .num_messages = numbers[2]};
  report.num_issued.assign(numbers.begin() + kLeastNumbers, numbers.end());
  if (report.awaited < RankReport::kCollective || report.awaited >= num_ranks) return {};
  return report;
}

}  // namespace gemini::trainer
