// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/collective_cost.h"

#include <algorithm>
#include <bit>

namespace gemini::policies {
namespace {

// The link that a ring through the group waits for. Each node passes everything on once, by all of
// its ranks' parts of the way out.
RankLink SlowestOfRing(const GroupPlaces& group, const RankNetwork& network) {
  if (!group.spans_nodes()) return network.within;
  RankLink slowest = {network.between.latency_seconds,
                      network.between.bytes_per_second * static_cast<double>(group.ranks_on_node)};
  if (group.ranks_on_node > 1) {
    slowest.latency_seconds = std::max(slowest.latency_seconds, network.within.latency_seconds);
    slowest.bytes_per_second = std::min(slowest.bytes_per_second, network.within.bytes_per_second);
  }
  return slowest;
}

// `steps` messages in turn, in which each rank sends `bytes` in all.
double RingSeconds(double steps, double bytes, const GroupPlaces& group,
                   const RankNetwork& network) {
  if (group.num_ranks == 1) return 0;
  const RankLink link = SlowestOfRing(group, network);
  return steps * link.latency_seconds + bytes / link.bytes_per_second;
}

}  // namespace

GroupPlaces PlacesOf(absl::Span<const int64_t> ranks, int64_t ranks_per_node) {
  GroupPlaces places = {.num_ranks = static_cast<int64_t>(ranks.size()),
                        .ranks_on_node = static_cast<int64_t>(ranks.size())};
  for (size_t begin = 0; begin < ranks.size();) {
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
  const double steps = static_cast<double>(group.num_ranks - 1);
  return RingSeconds(steps, bytes * steps / static_cast<double>(group.num_ranks), group, network);
}

double ReduceScatterSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  return AllGatherSeconds(bytes, group, network);
}

double AllReduceSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  const double ring = 2 * AllGatherSeconds(bytes, group, network);
  // Up and down, through the ranks of a node and then through the nodes. Each of the two trees has
  // half of the bytes, and each rank is inside one of them.
  const auto levels = [](int64_t ranks) {
    return static_cast<double>(std::bit_width(static_cast<uint64_t>(ranks - 1)));
  };
  const int64_t nodes = group.num_ranks / group.ranks_on_node;
  const double latency = 2 * (levels(group.ranks_on_node) * network.within.latency_seconds +
                              levels(nodes) * network.between.latency_seconds);
  const double trees = latency + RingSeconds(0, 2 * bytes, group, network);
  return group.num_ranks == 1 ? 0 : std::min(ring, trees);
}

double AllToAllSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  if (group.num_ranks == 1) return 0;
  const double part = bytes / static_cast<double>(group.num_ranks);
  const auto to = [&](int64_t ranks, const RankLink& link) {
    const double messages = static_cast<double>(ranks);
    return messages == 0 ? 0 : messages * (link.latency_seconds + part / link.bytes_per_second);
  };
  // Both ways are used at the same time.
  return std::max(to(group.ranks_on_node - 1, network.within),
                  to(group.num_ranks - group.ranks_on_node, network.between));
}

double ShiftSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network) {
  return RingSeconds(1, bytes, group, network);
}

double SendSeconds(double bytes, bool to_another_node, const RankNetwork& network) {
  const RankLink& link = to_another_node ? network.between : network.within;
  return link.latency_seconds + bytes / link.bytes_per_second;
}

}  // namespace gemini::policies
