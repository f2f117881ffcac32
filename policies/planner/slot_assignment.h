// SPDX-License-Identifier: Apache-2.0
// Gives single chunks their slots when all their stays are known: any slot does as long as nobody
// else is there, but a stay that goes on into the next round needs one that is free at both of its
// ends.
#pragma once
#include <cstdint>
#include <vector>

#include "policies/trace/stay.h"

namespace gemini::policies {

// Sets the slots of `stays`, of ranges of one chunk each, at most num_slots of them at any time.
// Returns the ranges whose stays into the next round found no place: with fewer such stays there is
// one, and the slots are void. Others take the slot that is needed again the soonest behind them,
// else the one that has been free for longest, so that their fetch may begin early. O(stays log
// stays).
std::vector<int32_t> AssignSlots(int32_t num_positions, int32_t num_slots,
                                 std::vector<Stay>& stays);

}  // namespace gemini::policies
