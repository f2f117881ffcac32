// SPDX-License-Identifier: Apache-2.0
// Who gives way when a newcomer needs DEVICE, and who gets what is free: pure arithmetic.
// Units:  bytes. Thread: any.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gemini::server {

struct BudgetShare {
  uint64_t session = 0;
  int64_t granted_bytes = 0;
  int64_t floor_bytes = 0;  // At most granted_bytes; not read by ShareOut.
  int64_t want_bytes = 0;   // At least granted_bytes; not read by GiveWay.
};
struct Newcomer {
  int64_t floor_bytes = 0;   // At least 0.
  int64_t target_bytes = 0;  // At least floor_bytes.
};
struct NewShare {
  uint64_t session = 0;
  int64_t granted_bytes = 0;
  bool operator==(const NewShare&) const = default;
};

// What each newcomer, in the order of arrival, is to have of `supply_bytes`: all their floors, then
// what is left up to their targets. Empty: it is less than their floors.
std::vector<int64_t> Promises(absl::Span<const Newcomer> newcomers, int64_t supply_bytes);

// Smaller grants that free exactly `needed_bytes` (> 0), none below its floor: of the one with the
// most above its floor first, so that as few as can are disturbed. Empty: all their slack is not
// enough.
std::vector<NewShare> GiveWay(absl::Span<const BudgetShare> shares, int64_t needed_bytes);
// The same, but first of those who have more than `fair_bytes`, down to that or their floor.
std::vector<NewShare> GiveWayFairly(absl::Span<const BudgetShare> shares, int64_t needed_bytes,
                                    int64_t fair_bytes);

// Larger grants, none above its want, that take up to `free_bytes`: the one that lacks most first.
std::vector<NewShare> ShareOut(absl::Span<const BudgetShare> shares, int64_t free_bytes);

}  // namespace gemini::server
