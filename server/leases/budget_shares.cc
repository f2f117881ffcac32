// SPDX-License-Identifier: Apache-2.0
#include "server/leases/budget_shares.h"

#include <algorithm>
#include <utility>

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

std::vector<int64_t> Promises(absl::Span<const Newcomer> newcomers, int64_t supply_bytes) {
  std::vector<int64_t> promised;
  for (const Newcomer& newcomer : newcomers) {
    // By subtraction: a peer's floor may be as large as its type.
    if (newcomer.floor_bytes > supply_bytes) return {};
    supply_bytes -= newcomer.floor_bytes;
    promised.push_back(newcomer.floor_bytes);
  }
  for (size_t i = 0; i < promised.size(); ++i) {
    const int64_t more =
        std::min(newcomers[i].target_bytes - newcomers[i].floor_bytes, supply_bytes);
    promised[i] += more;
    supply_bytes -= more;
  }
  return promised;
}

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

std::vector<NewShare> GiveWayFairly(absl::Span<const BudgetShare> shares, int64_t needed_bytes,
                                    int64_t fair_bytes) {
  std::vector<BudgetShare> kept(shares.begin(), shares.end());
  int64_t excess_bytes = 0;
  for (BudgetShare& share : kept) {
    share.floor_bytes = std::clamp(fair_bytes, share.floor_bytes, share.granted_bytes);
    excess_bytes += share.granted_bytes - share.floor_bytes;
  }
  if (needed_bytes <= excess_bytes) return GiveWay(kept, needed_bytes);
  // All their excess, and the rest of whoever is still above its floor.
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i].granted_bytes = std::exchange(kept[i].floor_bytes, shares[i].floor_bytes);
  }
  const std::vector<NewShare> rest = GiveWay(kept, needed_bytes - excess_bytes);
  std::vector<NewShare> smaller;
  if (rest.empty()) return smaller;
  for (size_t i = 0; i < kept.size(); ++i) {
    NewShare share = {kept[i].session, kept[i].granted_bytes};
    for (const NewShare& less : rest) {
      if (less.session == share.session) share = less;
    }
    if (share.granted_bytes < shares[i].granted_bytes) smaller.push_back(share);
  }
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
