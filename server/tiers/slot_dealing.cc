// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/slot_dealing.h"

#include <limits>

namespace gemini::server {

std::vector<SlotPlace> DealSlots(const TierGrant& grant) {
  int64_t num_slots = 0;
  for (const TierExtent& extent : grant.extents) num_slots += extent.num_slots;
  std::vector<int64_t> dealt(grant.extents.size());
  std::vector<SlotPlace> places;
  places.reserve(num_slots);
  while (static_cast<int64_t>(places.size()) < num_slots) {
    // The next slot of each extent would be at this part of it, by its middle; the first of them is
    // due.
    double least = std::numeric_limits<double>::infinity();
    int64_t due = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(dealt.size()); ++i) {
      const int64_t size = grant.extents[i].num_slots;
      if (dealt[i] == size) continue;
      const double part = (static_cast<double>(dealt[i]) + 0.5) / static_cast<double>(size);
      if (part >= least) continue;
      least = part;
      due = i;
    }
    places.push_back({due, dealt[due]++});
  }
  return places;
}

}  // namespace gemini::server
