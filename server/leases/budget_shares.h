// SPDX-License-Identifier: Apache-2.0
// Computes new DEVICE grants: which leases shrink when a new one needs memory, and which grow when
// memory is free. Pure arithmetic.
// Thread: any.
// Units:  bytes.
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

// Returns what each new lease, in the order of arrival, is promised of `supply_bytes`: first its
// floor, then, from what is left, up to its target. Returns nothing if the supply is less than all
// floors.
std::vector<int64_t> Promises(absl::Span<const Newcomer> newcomers, int64_t supply_bytes);

// Returns smaller grants that together free exactly `needed_bytes` (> 0), none below its floor. The
// lease with the most above its floor shrinks first, so that few leases are disturbed. Returns
// nothing if that is not enough.
std::vector<NewShare> GiveWay(absl::Span<const BudgetShare> shares, int64_t needed_bytes);
// As GiveWay, but leases with more than `fair_bytes` first shrink down to that or to their floor.
std::vector<NewShare> GiveWayFairly(absl::Span<const BudgetShare> shares, int64_t needed_bytes,
                                    int64_t fair_bytes);

// Returns larger grants, none above its want, that together take up to `free_bytes`. The lease that
// lacks the most grows first.
std::vector<NewShare> ShareOut(absl::Span<const BudgetShare> shares, int64_t free_bytes);

}  // namespace gemini::server
