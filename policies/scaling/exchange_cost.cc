// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/exchange_cost.h"

namespace gemini::policies {
namespace {

double AsDouble(int64_t number) { return static_cast<double>(number); }

// In a ring one rank of each node sends to another node. Nothing is not sent.
ExchangeCost InRing(double seconds, double bytes, const GroupPlaces& group) {
  if (group.num_ranks == 1 || bytes == 0) return {};
  const double between =
      group.num_nodes > 1 ? bytes * AsDouble(group.num_nodes) / AsDouble(group.num_ranks) : 0;
  return {seconds, bytes, between};
}

double PartsOfOthers(double bytes, const GroupPlaces& group) {
  return bytes * AsDouble(group.num_ranks - 1) / AsDouble(group.num_ranks);
}

}  // namespace

ExchangeCost& ExchangeCost::operator+=(const ExchangeCost& other) {
  seconds += other.seconds;
  bytes += other.bytes;
  bytes_between_nodes += other.bytes_between_nodes;
  return *this;
}

ExchangeCost ExchangeCost::operator*(double times) const {
  return {seconds * times, bytes * times, bytes_between_nodes * times};
}

ExchangeCost AllGatherCost(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  return InRing(AllGatherSeconds(bytes, group, network), PartsOfOthers(bytes, group), group);
}

ExchangeCost ReduceScatterCost(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  return InRing(ReduceScatterSeconds(bytes, group, network), PartsOfOthers(bytes, group), group);
}

ExchangeCost AllReduceCost(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  return InRing(AllReduceSeconds(bytes, group, network), 2 * PartsOfOthers(bytes, group), group);
}

ExchangeCost AllToAllCost(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  if (group.num_ranks == 1 || bytes == 0) return {};
  const double part = bytes / AsDouble(group.num_ranks);
  return {AllToAllSeconds(bytes, group, network), PartsOfOthers(bytes, group),
          part * AsDouble(group.num_ranks - group.ranks_on_node)};
}

ExchangeCost ShiftCost(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  return InRing(ShiftSeconds(bytes, group, network), bytes, group);
}

}  // namespace gemini::policies
