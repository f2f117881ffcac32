// SPDX-License-Identifier: Apache-2.0
// What Residency asks of whoever moves ranges by a plan (client/plan/plan_executor.h).
// Thread: any, with Residency's lock held: nothing here may call Residency or wait.
#pragma once
#include "gemini/ids.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

using RangeId = Id<struct RangeTag>;

class PlannedMoves {
 public:
  virtual ~PlannedMoves() = default;
  // Whether it still moves ranges. False from Interrupt on, but what it began still lands.
  virtual bool active() const = 0;
  // Whether nothing may be begun just now.
  virtual bool paused() const = 0;
  // Whether `range`, or room for it, will be brought although its waiter waits. `blocked`: the
  // fetch that waits for its slots would wait still, if it began now.
  virtual bool IsComing(RangeId range, bool blocked) = 0;
  // Whether the plan keeps the gradient range on DEVICE until the update begins.
  virtual bool KeepsGradient(RangeId range) const = 0;
  // Whether evictions that are due now are still being made.
  virtual bool IsEvicting() const = 0;
  // What a waiter waits for now.
  virtual StallCause WaitingFor() const = 0;
  // Ends it: the plan does not hold any more. Nothing when it has ended.
  virtual void Interrupt(Divergence cause) = 0;
};

}  // namespace gemini::client
