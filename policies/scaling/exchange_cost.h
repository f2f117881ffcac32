// SPDX-License-Identifier: Apache-2.0
// Computes what the exchanges of a rank cost: how long they take when nothing else runs, and how
// much the rank sends.
// Units:  bytes, as rings send them (policies/mesh/tensor_costs.h), and seconds.
// Pure.
#pragma once
#include "policies/mesh/collective_cost.h"

namespace gemini::policies {

struct ExchangeCost {
  double seconds = 0;
  double bytes = 0;
  // What of them goes to another node, on the average of the group's ranks.
  double bytes_between_nodes = 0;

  ExchangeCost& operator+=(const ExchangeCost& other);
  ExchangeCost operator*(double times) const;
};

// The collectives of collective_cost.h. Each takes what the function there takes that says its
// seconds. Nothing costs nothing.
ExchangeCost AllGatherCost(double bytes, const GroupPlaces& group, const RankNetwork& network);
ExchangeCost ReduceScatterCost(double bytes, const GroupPlaces& group, const RankNetwork& network);
ExchangeCost AllReduceCost(double bytes, const GroupPlaces& group, const RankNetwork& network);
ExchangeCost AllToAllCost(double bytes, const GroupPlaces& group, const RankNetwork& network);
ExchangeCost ShiftCost(double bytes, const GroupPlaces& group, const RankNetwork& network);

}  // namespace gemini::policies
