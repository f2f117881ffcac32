// SPDX-License-Identifier: Apache-2.0
// What Residency asks of the object that moves ranges by a plan (client/plan/plan_executor.h).
// Thread: any, with Residency's lock held. Nothing here may call Residency or wait.
#pragma once
#include "gemini/ids.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

using RangeId = Id<struct RangeTag>;

class PlannedMoves {
 public:
  virtual ~PlannedMoves() = default;
  // Returns whether it still moves ranges. False from Interrupt on, but what it began still lands.
  virtual bool active() const = 0;
  // Returns whether no move may begin at the moment.
  virtual bool paused() const = 0;
  // Returns whether `range`, or room for it, will arrive although a thread waits for it. `blocked`:
  // a fetch that waits for its slots would still wait if it began now.
  virtual bool IsComing(RangeId range, bool blocked) = 0;
  // Returns whether the plan keeps the gradient range on DEVICE until the update begins.
  virtual bool KeepsGradient(RangeId range) const = 0;
  // Returns whether evictions that are due now are still in progress.
  virtual bool IsEvicting() const = 0;
  // Returns what a waiter waits for now.
  virtual StallCause WaitingFor() const = 0;
  // Ends the plan, because it does not hold any more. Does nothing if it has ended.
  virtual void Interrupt(Divergence cause) = 0;
};

}  // namespace gemini::client
