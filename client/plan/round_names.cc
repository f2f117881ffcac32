// SPDX-License-Identifier: Apache-2.0
#include "client/plan/round_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gemini::client {
namespace {

// More updates of one space in a row count as so many, because each name is recorded and planned
// for itself. An adversarial loop updates its critic five or ten times in a row. After more than
// these, the generator's round has the name of the critic's last ones, and is placed on demand.
constexpr int kMaxUpdatesInRow = 32;

}  // namespace

std::string RoundNames::OfRound(bool evaluates, int32_t space) const {
  if (has_pushed()) return pushed_.back();
  std::string name = WithSpace(evaluates ? "eval" : "train", space);
  if (!evaluates && updates_in_row_ > 0) {
    absl::StrAppend(&name, "-after-", spaces_[updated_]);
    if (updates_in_row_ > 1) absl::StrAppend(&name, "*", updates_in_row_);
  }
  return name;
}

std::string RoundNames::BeginUpdate(int32_t space) {
  updating_ = space;
  return WithSpace("update", space);
}

bool RoundNames::EndUpdate() {
  if (updating_ != updated_) {
    updates_in_row_ = updated_ < 0 ? 0 : 1;
    updated_ = updating_;
  } else if (updates_in_row_ > 0) {
    updates_in_row_ = std::min(updates_in_row_ + 1, kMaxUpdatesInRow);
  }
  return updates_in_row_ > 0;
}

std::string RoundNames::WithSpace(const char* what, int32_t space) const {
  return space == 0 ? what : absl::StrCat(what, "-", spaces_[space]);
}

}  // namespace gemini::client
