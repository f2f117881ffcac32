// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/collective_cost.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace gemini::policies {
namespace {

double Count(int64_t number) { return static_cast<double>(number); }

// The rate of the slowest link in a ring through the group.
double RingRate(const GroupPlaces& group, const RankNetwork& network) {
  double rate = group.num_ranks > group.num_nodes ? network.within.bytes_per_second
                                                  : std::numeric_limits<double>::infinity();
  if (group.num_nodes > 1) {
    rate = std::min(rate, network.between.bytes_per_second * Count(group.ranks_on_node));
  }
  return rate;
}

}  // namespace

GroupPlaces PlacesOf(absl::Span<const int64_t> ranks, int64_t ranks_per_node) {
  GroupPlaces places = {.num_ranks = static_cast<int64_t>(ranks.size()),
                        .num_nodes = 0,
                        .ranks_on_node = static_cast<int64_t>(ranks.size())};
  for (size_t begin = 0; begin < ranks.size(); ++places.num_nodes) {
    size_t end = begin;
    while (end < ranks.size() && ranks[end] / ranks_per_node == ranks[begin] / ranks_per_node) {
      ++end;
    }
    places.ranks_on_node = std::min(places.ranks_on_node, static_cast<int64_t>(end - begin));
    begin = end;
  }
  return places;
}

double AllGatherSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  if (group.num_ranks == 1) return 0;
  // Of the steps from the first rank to the last, those from one node to the next.
  const double crossings = Count(group.num_nodes - 1);
  const double steps = Count(group.num_ranks - 1);
  return (steps - crossings) * network.within.latency_seconds +
         crossings * network.between.latency_seconds +
         bytes * steps / Count(group.num_ranks) / RingRate(group, network);
}

double ReduceScatterSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  const double parts_of_others = Count(group.num_ranks - 1) / Count(group.num_ranks);
  return AllGatherSeconds(bytes, group, network) +
         bytes * parts_of_others / network.sum_bytes_per_second;
}

double AllReduceSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  if (group.num_ranks == 1) return 0;
  const double ring =
      ReduceScatterSeconds(bytes, group, network) + AllGatherSeconds(bytes, group, network);
  // Up and down, through the ranks of a node and then through the nodes. Each of the two trees has
  // half of the bytes, and each rank is inside one of them.
  const auto levels = [](int64_t ranks) {
    return Count(std::bit_width(static_cast<uint64_t>(ranks - 1)));
  };
  const double trees = 2 * (levels(group.ranks_on_node) * network.within.latency_seconds +
                            levels(group.num_nodes) * network.between.latency_seconds +
                            bytes / RingRate(group, network)) +
                       bytes / network.sum_bytes_per_second;
  return std::min(ring, trees);
}

double AllToAllSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  if (group.num_ranks == 1) return 0;
  const double part = bytes / Count(group.num_ranks);
  const auto to = [&](int64_t ranks, const RankLink& link) {
    return Count(ranks) * (link.latency_seconds + part / link.bytes_per_second);
  };
  // Both ways are used at the same time.
  return std::max(to(group.ranks_on_node - 1, network.within),
                  to(group.num_ranks - group.ranks_on_node, network.between));
}

double ShiftSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  // All send at once, and each node's last rank to another node.
  double seconds = 0;
  if (group.num_ranks > group.num_nodes) seconds = SendSeconds(bytes, false, network);
  if (group.num_nodes > 1) seconds = std::max(seconds, SendSeconds(bytes, true, network));
  return seconds;
}

double SendSeconds(double bytes, bool to_another_node, const RankNetwork& network) {
  const RankLink& link = to_another_node ? network.between : network.within;
  return link.latency_seconds + bytes / link.bytes_per_second;
}

}  // namespace gemini::policies
