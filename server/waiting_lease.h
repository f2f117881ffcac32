// SPDX-License-Identifier: Apache-2.0
// A lease that waits for DEVICE which others were asked for, and the numbers by which it is
// promised some. Data only: the rules are in server/server_leases.cc.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "server/leases/budget_shares.h"
#include "server/loop/event_loop.h"
#include "server/wire/request_wire.h"

namespace gemini::server {

struct WaitingLease {
  uint64_t session = 0;
  uint64_t request = 0;
  OpenLeaseRequest want;
  bool asked = false;  // Others, to give way for it: what it is promised is kept for it.
  std::optional<EventLoop::TimerId> timer = {};  // Set with `asked`, until it has run.
};
// Where DEVICE for newcomers can come from.
struct DeviceSupply {
  int64_t coming_bytes = 0;         // Free, on its way back, or asked for and not yet vacated.
  int64_t slack_bytes = 0;          // Above the floors of those who take epochs.
  std::vector<BudgetShare> shares;  // Theirs, less those whose lease is still being made.
};
// What a newcomer is to have of it.
struct DevicePromise {
  bool fits = false;         // Otherwise not even the floors of all who wait do.
  int64_t fair_bytes = 0;    // An equal part for each job that has or wants some.
  int64_t own_bytes = 0;     // At least its floor, at most its want.
  int64_t others_bytes = 0;  // Promised to others for whom somebody was asked.
  int64_t others_floor_bytes = 0;
};

}  // namespace gemini::server
