// SPDX-License-Identifier: Apache-2.0
#include "client/plan/plan_binding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/plan/gate.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

void FindTurns(BoundPlan& bound) {
  const Plan& plan = bound.plan;
  struct Move {
    Gate gate;
    bool is_fetch;
    size_t index;
  };
  std::vector<Move> moves;
  for (size_t i = 0; i < plan.fetches.size(); ++i)
    moves.push_back({GateOf(plan.fetches[i]), true, i});
  for (size_t i = 0; i < plan.evictions.size(); ++i) {
    moves.push_back({GateOf(plan.evictions[i]), false, i});
  }
  // A range that is fetched when it may leave has left before.
  std::ranges::stable_sort(moves, [](const Move& a, const Move& b) {
    return std::pair(a.gate, a.is_fetch) < std::pair(b.gate, b.is_fetch);
  });
  bound.fetch_turns.resize(plan.fetches.size());
  bound.eviction_turns.resize(plan.evictions.size());
  std::vector<PlanTurn> done(plan.ranges.size());
  for (const PlannedResident& resident : plan.initial) ++done[resident.range].fetches;
  for (const Move& move : moves) {
    if (move.is_fetch) {
      PlanTurn& of_range = done[plan.fetches[move.index].range];
      bound.fetch_turns[move.index] = of_range;
      ++of_range.fetches;
    } else {
      PlanTurn& of_range = done[plan.evictions[move.index].range];
      bound.eviction_turns[move.index] = of_range;
      ++of_range.evictions;
    }
  }
  bound.moves_of = std::move(done);
  for (const PlannedResident& resident : plan.initial) --bound.moves_of[resident.range].fetches;
}

// Whether gradients of the space may stay for an update on DEVICE, or (`late`) until one in HOST.
absl::Status CheckKeepsGradients(const ChunkStore& store, bool late) {
  if (late ? TakesLateGradients(store.format()) : UpdatesInPlace(store.format())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a plan that keeps ", late ? "late gradients" : "gradients", " of space ", store.name(),
      late ? ", whose updates read them before" : ", which is updated in HOST alone"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const BoundPlan>> BindPlan(Plan plan, const Trace& trace,
                                                          absl::Span<ChunkStore* const> stores,
                                                          const Residency& residency,
                                                          int64_t device_bytes) {
  GEMINI_RETURN_IF_ERROR(CheckPlan(plan));
  if (plan.phase != trace.phase || plan.fingerprint != Fingerprint(trace) ||
      plan.num_positions() != trace.num_positions() ||
      plan.ends_with_update() != trace.ends_with_update()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a plan of ", plan.num_positions(), " positions for another trace than that of ",
        trace.phase, ", which has ", trace.num_positions()));
  }
  if (plan.chunk_bytes != residency.chunk_bytes() || plan.device_bytes > device_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a plan for ", plan.device_bytes, " bytes of DEVICE in chunks of ", plan.chunk_bytes,
        ", of ", device_bytes, " in chunks of ", residency.chunk_bytes()));
  }
  const auto fits = [&](const PlannedRange& range, SlotId slot) {
    return slot.value() >= 0 && range.num_bundles <= residency.num_slots() - slot.value();
  };
  bool all_fit = true;
  for (const PlannedResident& at : plan.initial) all_fit &= fits(plan.ranges[at.range], at.slot);
  for (const PlannedFetch& at : plan.fetches) all_fit &= fits(plan.ranges[at.range], at.slot);
  if (!all_fit) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan that uses more than the ", residency.num_slots(), " DEVICE slots"));
  }
  auto bound = std::make_shared<BoundPlan>();
  for (const PlannedRange& range : plan.ranges) {
    if (range.space < 0 || range.space >= static_cast<int64_t>(stores.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("a plan with a range of space ", range.space, " of ", stores.size()));
    }
    GEMINI_ASSIGN_OR_RETURN(const RangeId id, residency.FindRange(*stores[range.space], range.first,
                                                                  range.num_bundles, range.kind));
    bound->ranges.push_back(id);
  }
  for (const PlannedUpdate& update : plan.device_updates) {
    const PlannedRange& param = plan.ranges[update.param()];
    const ChunkStore* const store = stores[param.space];
    GEMINI_RETURN_IF_ERROR(CheckKeepsGradients(*store, /*late=*/false));
    const KindList kinds = TrainableKinds(store->format());
    UpdateRanges ranges = {
        .store = store, .first = param.first, .num_bundles = param.num_bundles, .ranges = {}};
    for (const ChunkKind kind : kAllChunkKinds) {
      const bool has_range = update.ranges[kind] != PlannedUpdate::kNone;
      if (has_range != (std::ranges::find(kinds, kind) != kinds.end())) {
        return absl::InvalidArgumentError(
            absl::StrCat("a plan that updates space ", store->name(), " on DEVICE ",
                         has_range ? "with" : "without", " chunks of ", ChunkKindName(kind)));
      }
      if (has_range) ranges.ranges[kind] = bound->ranges[update.ranges[kind]];
    }
    bound->kept.updates.push_back(ranges);
  }
  for (const int32_t range : plan.late_gradients) {
    const PlannedRange& grad = plan.ranges[range];
    GEMINI_RETURN_IF_ERROR(CheckKeepsGradients(*stores[grad.space], /*late=*/true));
    bound->kept.late_gradients.push_back({.store = stores[grad.space],
                                          .first = grad.first,
                                          .num_bundles = grad.num_bundles,
                                          .grad = bound->ranges[range]});
  }
  bound->plan = std::move(plan);
  FindTurns(*bound);
  bound->behind_write_backs = BehindWriteBacks(bound->plan);
  return bound;
}

}  // namespace gemini::client
