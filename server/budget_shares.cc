// SPDX-License-Identifier: Apache-2.0
#include "server/budget_shares.h"

#include <algorithm>

namespace gemini::server {
namespace {

// The largest `amount` first; the older session first among equals.
template <typename Amount>
std::vector<BudgetShare> Sorted(absl::Span<const BudgetShare> shares, Amount amount) {
  std::vector<BudgetShare> sorted(shares.begin(), shares.end());
  std::sort(sorted.begin(), sorted.end(), [&](const BudgetShare& a, const BudgetShare& b) {
    return amount(a) != amount(b) ? amount(a) > amount(b) : a.session < b.session;
  });
  return sorted;
}

}  // namespace

std::vector<NewShare> GiveWay(absl::Span<const BudgetShare> shares, int64_t needed_bytes) {
  const auto slack = [](const BudgetShare& share) {
    return share.granted_bytes - share.floor_bytes;
  };
  std::vector<NewShare> smaller;
  for (const BudgetShare& share : Sorted(shares, slack)) {
    const int64_t given = std::min(slack(share), needed_bytes);
    if (given <= 0) break;
    needed_bytes -= given;
    smaller.push_back({share.session, share.granted_bytes - given});
  }
  if (needed_bytes > 0) smaller.clear();
  return smaller;
}

std::vector<NewShare> ShareOut(absl::Span<const BudgetShare> shares, int64_t free_bytes) {
  const auto lack = [](const BudgetShare& share) { return share.want_bytes - share.granted_bytes; };
  std::vector<NewShare> larger;
  for (const BudgetShare& share : Sorted(shares, lack)) {
    const int64_t taken = std::min(lack(share), free_bytes);
    if (taken <= 0) break;
    free_bytes -= taken;
    larger.push_back({share.session, share.granted_bytes + taken});
  }
  return larger;
}

}  // namespace gemini::server
