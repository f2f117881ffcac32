// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/experts.h"

#include <cstdint>
#include <string>
#include <utility>

#include "ATen/ops/argsort.h"
#include "ATen/ops/bincount.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/floor_divide.h"
#include "ATen/ops/result_type.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/topk.h"
#include "absl/strings/str_cat.h"
#include "trainer/models/expert_cache.h"
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

// Returns the values of `counts` [experts], which sum up to rows * `chosen`. On the meta device,
// where nobody knows them, they are made up.
std::vector<int64_t> ValuesOf(const torch::Tensor& counts, int64_t rows, int64_t chosen,
                              bool crowds_first) {
  const int64_t count = counts.numel();
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (counts.is_meta()) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t even = rows * chosen * (i + 1) / count - rows * chosen * i / count;
      values[static_cast<size_t>(i)] = !crowds_first ? even : i < chosen ? rows : 0;
    }
    return values;
  }
  const torch::Tensor here = counts.to(torch::kCPU);
  const auto* const first = here.const_data_ptr<int64_t>();
  values.assign(first, first + count);
  return values;
}

// Adds to `router_sums` as Experts::Forward does.
Routes RoutesOf(const torch::Tensor& logits, const ExpertsSpec& spec, bool crowds_first,
                torch::Tensor& router_sums) {
  const torch::Tensor probabilities = at::softmax(logits, /*dim=*/-1, torch::kFloat32);
  auto [weights, chosen] = at::topk(probabilities, spec.chosen, /*dim=*/-1);
  if (spec.normalises) weights = weights / weights.sum(/*dim=*/-1, /*keepdim=*/true);
  if (spec.rounds_weights) weights = weights.to(logits.scalar_type());
  const torch::Tensor experts = chosen.flatten();
  const torch::Tensor counts = at::bincount(experts, /*weights=*/{}, /*minlength=*/spec.count);
  if (spec.router_loss_coefficient.has_value()) {
    const torch::Tensor sums =
        at::stack({counts.to(torch::kFloat32), probabilities.sum(/*dim=*/0)});
    router_sums = router_sums.defined() ? router_sums + sums : sums;
  }
  // Stable: rows of one expert stay in their order.
  const torch::Tensor order = at::argsort(experts, /*stable=*/true, /*dim=*/0);
  return {.row = at::floor_divide(order, spec.chosen),
          .weight = weights.flatten().index_select(0, order).unsqueeze(1),
          .place = at::argsort(order),
          .num_places = ValuesOf(counts, logits.size(0), spec.chosen, crowds_first)};
}

}  // namespace

Experts::Experts(const ModelSpec& spec, LayerSet& layers) : spec_(*spec.experts) {
  const ExpertNames& names = spec.layers.block.experts;
  router_ = AddModule(*this, names.router, layers.Linear({spec.width, spec_.count}, Role::kRouter));
  router_output_ = layers.RouterOutput();
  input_ = layers.SharedInput();
  weights_ = layers.ExpertWeights();
  output_ = layers.ExpertsOutput();
  FeedForwardSpec feed = spec.feed_forward;
  const auto add = [&](const std::string& name, bool is_expert) {
    const FeedNames below = {.gate = absl::StrCat(name, ".", names.expert.gate),
                             .in = absl::StrCat(name, ".", names.expert.in),
                             .out = absl::StrCat(name, ".", names.expert.out)};
    return FeedForward(*this, below, feed, spec.width, spec.block_matrices, layers, is_expert);
  };
  feed.width = spec_.width;
  for (int64_t i = 0; i < spec_.count; ++i) {
    experts_.push_back(add(absl::StrCat(names.experts, ".", i), /*is_expert=*/true));
  }
  if (spec_.shared_width == 0) return;
  feed.width = spec_.shared_width;
  shared_.emplace(add(names.shared, /*is_expert=*/false));
  shared_gate_ = AddModule(*this, names.shared_gate, layers.Linear({spec.width, 1}, Role::kRouter));
}

torch::Tensor Experts::Forward(const torch::Tensor& rows, const ExpertRouting& routing,
                               torch::Tensor& router_sums) const {
  torch::Tensor logits = router_->Forward(rows);
  if (router_output_) logits = router_output_->Forward(logits);
  const Routes routes = RoutesOf(logits, spec_, routing.crowds_first, router_sums);
  const int64_t num_rows = logits.size(0);
  logits.reset();
  const torch::Tensor in = input_ ? input_->Forward(rows) : rows;
  std::vector<torch::Tensor> parts =
      in.index_select(0, routes.row).split_with_sizes(routes.num_places);
  const auto runs = [&](size_t i) { return !routing.routed || routes.num_places[i] > 0; };
  if (routing.cache != nullptr) {
    std::vector<const FeedForward*> chosen;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (runs(i)) chosen.push_back(&experts_[i]);
    }
    routing.cache->Choose(std::move(chosen));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!runs(i)) continue;  // What it would return has no rows either.
    const FeedForward& expert = routing.cache != nullptr ? routing.cache->Next() : experts_[i];
    parts[i] = expert.Forward(std::move(parts[i]));
  }
  torch::Tensor joined = at::cat(parts);
  parts.clear();
  torch::Tensor weight = routes.weight;
  if (weights_) {
    // Of the products' type, in which their gradients are added up.
    weight = weights_->Forward(weight.to(at::result_type(joined, weight)));
  }
  joined = joined * weight;
  // Summed by row and not scattered: a scatter would keep `joined` for backward.
  torch::Tensor out = joined.index_select(0, routes.place)
                          .view({num_rows, spec_.chosen, rows.size(1)})
                          .sum(/*dim=*/1)
                          .to(rows.scalar_type());
  if (output_) out = output_->Forward(out);
  if (!shared_.has_value()) return out;
  const torch::Tensor shared = shared_->Forward(in);
  return out + at::sigmoid(shared_gate_->Forward(rows)) * shared;
}

torch::Tensor RouterLoss(const torch::Tensor& router_sums, const ExpertsSpec& spec) {
  const torch::Tensor counts = router_sums[0].detach();
  const torch::Tensor tokens = counts.sum() / spec.chosen;
  return (counts / tokens * (router_sums[1] / tokens)).sum() * spec.count;
}

}  // namespace gemini::trainer
