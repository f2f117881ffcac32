// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/experts.h"

#include <cstdint>
#include <string>
#include <utility>

#include "ATen/ops/argsort.h"
#include "ATen/ops/bincount.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/floor_divide.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/topk.h"
#include "absl/strings/str_cat.h"
#include "trainer/models/module_tree.h"

namespace gemini::trainer {
namespace {

// Which rows go to which expert. A place is a row's way through one of its experts; places of one
// expert are neighbours.
struct Routes {
  torch::Tensor row;                // int64 [places]: the row of each.
  torch::Tensor weight;             // [places, 1]: what an expert's result is multiplied by.
  torch::Tensor place;              // int64 [rows * chosen]: the places of each row.
  std::vector<int64_t> num_places;  // By expert.
};

// Returns how many of `experts` [places] are which of them, from 0 to `count`. On the meta device,
// where nobody knows, all are equally many.
std::vector<int64_t> NumPlaces(const torch::Tensor& experts, int64_t count) {
  std::vector<int64_t> places(static_cast<size_t>(count));
  if (experts.is_meta()) {
    const int64_t all = experts.numel();
    for (int64_t i = 0; i < count; ++i) {
      places[static_cast<size_t>(i)] = all * (i + 1) / count - all * i / count;
    }
    return places;
  }
  const torch::Tensor counts =
      at::bincount(experts, /*weights=*/{}, /*minlength=*/count).to(torch::kCPU);
  const auto* const first = counts.const_data_ptr<int64_t>();
  places.assign(first, first + count);
  return places;
}

Routes RoutesOf(const torch::Tensor& logits, const ExpertsSpec& spec) {
  const torch::Tensor probabilities = at::softmax(logits, /*dim=*/-1, torch::kFloat32);
  auto [weights, chosen] = at::topk(probabilities, spec.chosen, /*dim=*/-1);
  if (spec.normalises) weights = weights / weights.sum(/*dim=*/-1, /*keepdim=*/true);
  if (spec.rounds_weights) weights = weights.to(logits.scalar_type());
  const torch::Tensor experts = chosen.flatten();
  // Stable: rows of one expert stay in their order.
  const torch::Tensor order = at::argsort(experts, /*stable=*/true, /*dim=*/0);
  return {.row = at::floor_divide(order, spec.chosen),
          .weight = weights.flatten().index_select(0, order).unsqueeze(1),
          .place = at::argsort(order),
          .num_places = NumPlaces(experts, spec.count)};
}

}  // namespace

Experts::Experts(const ModelSpec& spec, LayerSet& layers) : spec_(*spec.experts) {
  const ExpertNames& names = spec.layers.block.experts;
  router_ = AddModule(*this, names.router, layers.Linear({spec.width, spec_.count}, Role::kRouter));
  FeedForwardSpec feed = spec.feed_forward;
  const auto add = [&](const std::string& name) {
    const FeedNames below = {.gate = absl::StrCat(name, ".", names.expert.gate),
                             .in = absl::StrCat(name, ".", names.expert.in),
                             .out = absl::StrCat(name, ".", names.expert.out)};
    return FeedForward(*this, below, feed, spec.width, spec.block_matrices, layers);
  };
  feed.width = spec_.width;
  for (int64_t i = 0; i < spec_.count; ++i) {
    experts_.push_back(add(absl::StrCat(names.experts, ".", i)));
  }
  if (spec_.shared_width == 0) return;
  feed.width = spec_.shared_width;
  shared_.emplace(add(names.shared));
  shared_gate_ = AddModule(*this, names.shared_gate, layers.Linear({spec.width, 1}, Role::kRouter));
}

torch::Tensor Experts::Forward(const torch::Tensor& rows) const {
  const Routes routes = RoutesOf(router_->Forward(rows), spec_);
  std::vector<torch::Tensor> parts =
      rows.index_select(0, routes.row).split_with_sizes(routes.num_places);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = experts_[i].Forward(std::move(parts[i]));
  }
  torch::Tensor joined = at::cat(parts);
  parts.clear();
  joined = joined * routes.weight;
  // Summed by row and not scattered: a scatter would keep `joined` for backward.
  const torch::Tensor out = joined.index_select(0, routes.place)
                                .view({rows.size(0), spec_.chosen, rows.size(1)})
                                .sum(/*dim=*/1)
                                .to(rows.scalar_type());
  if (!shared_.has_value()) return out;
  const torch::Tensor shared = shared_->Forward(rows);
  return out + at::sigmoid(shared_gate_->Forward(rows)) * shared;
}

}  // namespace gemini::trainer
