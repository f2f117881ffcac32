// SPDX-License-Identifier: Apache-2.0
// Assigns slots to single chunks when all their stays are known. Any slot will do that no other
// range uses meanwhile, but a stay that continues into the next round needs one that is free at
// both of its ends.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/trace/stay.h"

namespace gemini::policies {

// Sets the slots of `stays`, of ranges of one chunk each, at most num_slots of them at any time.
// Returns the ranges whose stays into the next round found no place. The slots are then void; with
// fewer such stays there is an assignment. Other stays take the slot that is needed again the
// soonest after them, else the one that has been free for longest, so that their fetch may begin
// early. O(stays log stays).
std::vector<int32_t> AssignSlots(int32_t num_positions, int32_t num_slots,
                                 std::vector<Stay>& stays);

}  // namespace gemini::policies
