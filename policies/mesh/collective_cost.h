// SPDX-License-Identifier: Apache-2.0
// Estimates how long collectives take, from their bytes and from the links between their ranks.
// Model:  a message of n bytes takes the link's latency, and n divided by its rate. Ranks in a ring
//         send to the next at the same time: the slowest link's rate decides, and latencies add up
//         along the ring. Each rank has an equal part of its node's links to other nodes. A
//         collective uses the parts of all ranks that take part in it, a message that of its rank.
// Units:  bytes, seconds.
// Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
//         MPICH" (2005), for rings and trees; NCCL's double trees send as many bytes as rings,
//         in steps that grow with the logarithm (Sanders, Speck and Träff, "Two-tree algorithms",
//         2009).
// Pure.
#pragma once
#include <cstdint>
#include <limits>

#include "absl/types/span.h"

namespace gemini::policies {

struct RankLink {
  double latency_seconds = 0;
  double bytes_per_second = 0;  // In each direction at the same time. More than 0.
};

// Links of a rank. Ranks of a node have neighbouring numbers.
struct RankNetwork {
  int64_t ranks_per_node = 1;
  RankLink within;   // To another rank of its node.
  RankLink between;  // To a rank of another node: its part of the node's way out.
  // How many bytes of others a rank adds to its own a second, when they have come. NCCL adds them
  // while they come, and processors do not.
  double sum_bytes_per_second = std::numeric_limits<double>::infinity();
};

// How the ranks of a group lie on nodes.
struct GroupPlaces {
  int64_t num_ranks = 1;
  int64_t num_nodes = 1;
  // This counts the ranks on the node that has the fewest, because its way out is the narrowest.
  int64_t ranks_on_node = 1;
};
// `ranks`: ascending, each once, at least one.
GroupPlaces PlacesOf(absl::Span<const int64_t> ranks, int64_t ranks_per_node);

// Each rank gets all parts, or the sum of its own part. `bytes` is the size of all parts together.
// Sums are added up behind what is sent.
double AllGatherSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network);
double ReduceScatterSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network);
// Each rank gets the sum of all. By a ring, or by two trees where that is faster.
double AllReduceSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network);
// Each rank has `bytes`, and sends each other rank its part of them.
double AllToAllSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network);
// Each rank sends `bytes` to the next in the group, and the last one to the first.
double ShiftSeconds(double bytes, const GroupPlaces& group, const RankNetwork& network);
// A message from one rank to another.
double SendSeconds(double bytes, bool to_another_node, const RankNetwork& network);

}  // namespace gemini::policies
