// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_verdict.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {
namespace {

constexpr absl::string_view kAgreed = "gemini.all_ranks_agree";

}  // namespace

RankVerdict::RankVerdict(const absl::Status& status) : code_(static_cast<int32_t>(status.code())) {
  constexpr absl::string_view kCut = "...";
  const absl::string_view message = status.message();
  text_size_ = static_cast<int32_t>(std::min(message.size(), text_.size()));
  std::copy_n(message.begin(), text_size_, text_.begin());
  if (message.size() > text_.size()) std::ranges::copy(kCut, text_.end() - kCut.size());
}

absl::Status RankVerdict::ToStatus() const {
  const auto size = std::min(static_cast<size_t>(std::max(text_size_, 0)), text_.size());
  return absl::Status(static_cast<absl::StatusCode>(code_), absl::string_view(text_.data(), size));
}

absl::Status WorstOf(absl::Span<const RankVerdict> by_rank) {
  absl::Status worst;
  int64_t rank = 0;
  int64_t num_failed = 0;
  bool alike = true;
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const absl::Status status = by_rank[i].ToStatus();
    if (status.ok()) continue;
    ++num_failed;
    alike = alike && (worst.ok() || worst == status);
    if (worst.ok() || (absl::IsOutOfRange(worst) && !absl::IsOutOfRange(status))) {
      worst = status;
      rank = static_cast<int64_t>(i);
    }
  }
  if (worst.ok()) return worst;
  if (alike && num_failed == static_cast<int64_t>(by_rank.size())) return MarkAsAgreed(worst);
  std::string text = absl::StrCat("rank ", rank, ": ", worst.message());
  if (num_failed > 1) absl::StrAppend(&text, " (", num_failed, " ranks failed)");
  return MarkAsAgreed(absl::Status(worst.code(), text));
}

absl::Status MarkAsAgreed(absl::Status status) {
  if (!status.ok()) status.SetPayload(kAgreed, absl::Cord());
  return status;
}

bool IsAgreed(const absl::Status& status) { return status.GetPayload(kAgreed).has_value(); }

}  // namespace gemini::trainer
