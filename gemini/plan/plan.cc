// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/plan/gate.h"
#include "gemini/system/status_macros.h"

namespace gemini {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max() / 2;
constexpr int32_t kNobody = -1;
constexpr int32_t kNotPending = -1;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("not a plan: ", parts...));
}

absl::Status CheckShape(const Plan& plan) {
  if (plan.chunk_bytes <= 0 || plan.device_bytes < 0) {
    return Wrong("chunks of ", plan.chunk_bytes, " bytes in ", plan.device_bytes);
  }
  if (plan.first_use.size() < 2 || plan.first_use.size() > kMaxCount ||
      plan.uses.size() > kMaxCount || plan.ranges.size() > kMaxCount || plan.first_use[0] != 0 ||
      plan.first_use.back() != static_cast<int64_t>(plan.uses.size()) ||
      !std::is_sorted(plan.first_use.begin(), plan.first_use.end())) {
    return Wrong("the uses of its ", plan.first_use.size(), " - 1 positions are not consecutive");
  }
  const int64_t num_slots = plan.device_bytes / plan.chunk_bytes;
  const int64_t num_ranges = static_cast<int64_t>(plan.ranges.size());
  const int32_t n = plan.num_positions();
  for (int64_t i = 0; i < num_ranges; ++i) {
    const PlannedRange& range = plan.ranges[i];
    if (range.space < 0 || range.first.value() < 0 || range.num_bundles <= 0 ||
        range.num_bundles > kMaxCount || range.first.value() > kMaxCount ||
        static_cast<int>(range.kind) >= kNumChunkKinds) {
      return Wrong("range ", i, " has ", range.num_bundles, " bundles from ", range.first.value(),
                   " of space ", range.space, ", kind ", static_cast<int>(range.kind));
    }
  }
  const auto is_range = [&](int32_t range) { return range >= 0 && range < num_ranges; };
  const auto is_place = [&](int32_t range, SlotId slot) {
    return is_range(range) && slot.value() >= 0 &&
           slot.value() <= num_slots - plan.ranges[range].num_bundles;
  };
  for (const int32_t range : plan.uses) {
    if (!is_range(range)) return Wrong("a use of range ", range, " of ", num_ranges);
  }
  for (const int32_t range : plan.updated) {
    if (!is_range(range) || plan.ranges[range].kind != ChunkKind::kParam) {
      return Wrong("an update of range ", range, " of ", num_ranges, ", or not of parameters");
    }
  }
  for (const PlannedResident& resident : plan.initial) {
    if (!is_place(resident.range, resident.slot)) {
      return Wrong("range ", resident.range, " begins in slot ", resident.slot.value(), " of ",
                   num_slots);
    }
  }
  Gate latest;
  for (size_t i = 0; i < plan.fetches.size(); ++i) {
    const PlannedFetch& fetch = plan.fetches[i];
    if (!is_place(fetch.range, fetch.slot) || fetch.after < -1 || fetch.after >= n ||
        fetch.needed_at < fetch.after || fetch.needed_at < 0 || fetch.needed_at >= 2 * n) {
      return Wrong("fetch ", i, " of range ", fetch.range, " into slot ", fetch.slot.value(),
                   " of ", num_slots, ", after ", fetch.after, ", needed at ", fetch.needed_at,
                   " of ", n);
    }
    latest = std::max(latest, GateOf(fetch));
    if (latest > Gate::BeginOf(fetch.needed_at)) {
      return Wrong("fetch ", i, " is needed at ", fetch.needed_at,
                   ", before one in front of it may begin");
    }
  }
  int32_t after = 0;
  for (const PlannedEviction& eviction : plan.evictions) {
    if (!is_range(eviction.range) || eviction.after < after || eviction.after >= n) {
      return Wrong("an eviction of range ", eviction.range, " after ", eviction.after,
                   ", behind one after ", after, ", of ", n);
    }
    if (eviction.stays && !eviction.writes_back) {
      return Wrong("range ", eviction.range, " stays after ", eviction.after,
                   " and is not written back");
    }
    after = eviction.after;
  }
  int64_t at_ns = 0;
  for (const PlannedHostUse& use : plan.host_uses) {
    if (use.space < 0 || use.chunk.value() < 0 || use.at_ns < at_ns) {
      return Wrong("a use in HOST of chunk ", use.chunk.value(), " of space ", use.space, " at ",
                   use.at_ns, " ns, behind one at ", at_ns);
    }
    at_ns = use.at_ns;
  }
  if (plan.host_read_ns < 0) return Wrong("reads from NVME that take ", plan.host_read_ns, " ns");
  return absl::OkStatus();
}

// The gradients that are on DEVICE when the update begins.
std::vector<int32_t> KeptGradients(const Plan& plan) {
  std::vector<int32_t> kept = plan.late_gradients;
  for (const PlannedUpdate& update : plan.device_updates) kept.push_back(update.grad());
  return kept;
}

// What late_gradients says of ranges; `listed` has those of device_updates.
absl::Status CheckLateGradients(const Plan& plan, std::vector<bool>& listed) {
  std::map<std::pair<int32_t, BundleId>, int64_t> num_bundles;
  for (const int32_t range : plan.updated) {
    const PlannedRange& param = plan.ranges[range];
    num_bundles[{param.space, param.first}] = param.num_bundles;
  }
  for (const int32_t range : plan.late_gradients) {
    if (range < 0 || range >= static_cast<int64_t>(plan.ranges.size()) || listed[range] ||
        plan.ranges[range].kind != ChunkKind::kGrad) {
      return Wrong("range ", range, " is late: it is no gradient, or comes twice");
    }
    const PlannedRange& grad = plan.ranges[range];
    const auto found = num_bundles.find({grad.space, grad.first});
    if (found == num_bundles.end() || found->second != grad.num_bundles) {
      return Wrong("the gradients of range ", range, " are late, and no update in HOST reads them");
    }
    listed[range] = true;
  }
  return absl::OkStatus();
}

// What device_updates and late_gradients say of ranges and of the uses of them.
absl::Status CheckUpdates(const Plan& plan) {
  const int32_t n = plan.num_positions();
  std::vector<bool> listed(plan.ranges.size()), used_there_alone(plan.ranges.size());
  std::vector<int32_t> used;
  for (size_t i = 0; i < plan.device_updates.size(); ++i) {
    const PlannedUpdate& update = plan.device_updates[i];
    for (const ChunkKind kind : kAllChunkKinds) {
      const int32_t range = update.ranges[kind];
      const bool must_be = kind == ChunkKind::kParam || kind == ChunkKind::kGrad;
      if (range == PlannedUpdate::kNone && !must_be) continue;
      if (range < 0 || range >= static_cast<int64_t>(plan.ranges.size()) || listed[range] ||
          plan.ranges[range].kind != kind) {
        return Wrong("update ", i, " on DEVICE has range ", range, " as its ", ChunkKindName(kind),
                     ": it is not, or comes twice");
      }
      PlannedRange same = plan.ranges[range];
      same.kind = ChunkKind::kParam;
      if (same != plan.ranges[update.param()]) {
        return Wrong("update ", i, " on DEVICE has ranges ", update.param(), " and ", range,
                     " of other bundles");
      }
      listed[range] = true;
      used_there_alone[range] = kind != ChunkKind::kParam;
      used.push_back(range);
    }
  }
  for (const int32_t range : plan.updated) {
    if (listed[range]) return Wrong("range ", range, " is updated on DEVICE and in HOST");
  }
  GEMINI_RETURN_IF_ERROR(CheckLateGradients(plan, listed));
  for (const int32_t range : plan.late_gradients) {
    used_there_alone[range] = true;
    used.push_back(range);
  }
  for (const PlannedResident& resident : plan.initial) {
    if (plan.ranges[resident.range].kind == ChunkKind::kGrad && listed[resident.range]) {
      return Wrong("it begins with a gradient in range ", resident.range);
    }
  }
  for (size_t i = 0; i < plan.ranges.size(); ++i) {
    const ChunkKind kind = plan.ranges[i].kind;
    if (kind != ChunkKind::kParam && kind != ChunkKind::kGrad && !listed[i]) {
      return Wrong("range ", i, " is of kind ", static_cast<int>(kind),
                   " and not updated on DEVICE");
    }
  }
  if (!plan.ends_with_update()) return absl::OkStatus();
  const auto update_uses = plan.uses.begin() + plan.first_use[n - 1];
  if (!std::equal(update_uses, plan.uses.end(), used.begin(), used.end())) {
    return Wrong("the update's operator uses ", plan.uses.end() - update_uses,
                 " ranges, other than the ", used.size(), " that it has on DEVICE");
  }
  for (auto use = plan.uses.begin(); use != update_uses; ++use) {
    if (used_there_alone[*use]) {
      return Wrong("an operator uses range ", *use, ", which is the update's");
    }
  }
  return absl::OkStatus();
}

// What was updated on DEVICE is written back before it is dropped, gradients as they leave.
absl::Status CheckWriteBacks(const Plan& plan) {
  const int32_t last = plan.num_positions() - 1;
  const std::vector<int32_t> grads = KeptGradients(plan);
  std::vector<int32_t> changed = grads;
  for (const PlannedUpdate& update : plan.device_updates) {
    const std::vector<int32_t> ranges = update.changed();
    changed.insert(changed.end(), ranges.begin(), ranges.end());
  }
  std::vector<bool> is_dirty(plan.ranges.size()), is_grad(plan.ranges.size()),
      grad_left(plan.ranges.size());
  for (const int32_t range : changed) is_dirty[range] = true;
  for (const int32_t range : grads) is_grad[range] = true;
  const auto first_after =
      std::find_if(plan.evictions.begin(), plan.evictions.end(),
                   [&](const PlannedEviction& eviction) { return eviction.after == last; });
  const size_t first = first_after - plan.evictions.begin();
  for (size_t i = 0; i < plan.evictions.size(); ++i) {
    const PlannedEviction& eviction = plan.evictions[(first + i) % plan.evictions.size()];
    if (eviction.writes_back) {
      is_dirty[eviction.range] = false;
    } else if (is_dirty[eviction.range] || is_grad[eviction.range]) {
      return Wrong("range ", eviction.range, " is dropped after ", eviction.after,
                   ", before what the update has of it on DEVICE is written back");
    }
    if (eviction.after == last && !eviction.stays) grad_left[eviction.range] = true;
  }
  for (const int32_t range : changed) {
    if (is_dirty[range])
      return Wrong("what the update has of range ", range, " is not written back");
  }
  for (const int32_t range : grads) {
    if (!grad_left[range]) return Wrong("the gradients of range ", range, " stay after the update");
  }
  return absl::OkStatus();
}

// Plays one round.
class Round {
 public:
  explicit Round(const Plan& plan)
      : plan_(plan),
        slot_of_(plan.ranges.size(), kNobody),
        pending_(plan.ranges.size(), kNotPending),
        stayed_at_(plan.ranges.size(), kNotPending),
        is_kept_grad_(plan.ranges.size()),
        has_gradients_(plan.ranges.size()) {
    int64_t num_slots = 0;
    const auto cover = [&](int32_t range, SlotId slot) {
      num_slots = std::max(num_slots, slot.value() + plan.ranges[range].num_bundles);
    };
    for (const PlannedResident& resident : plan.initial) cover(resident.range, resident.slot);
    for (const PlannedFetch& fetch : plan.fetches) cover(fetch.range, fetch.slot);
    occupants_.assign(num_slots, kNobody);
    std::set<std::pair<int32_t, BundleId>> updated_bundles;
    for (const int32_t range : plan.updated) {
      updated_bundles.insert({plan.ranges[range].space, plan.ranges[range].first});
    }
    for (const PlannedRange& range : plan.ranges) {
      of_update_.push_back(updated_bundles.count({range.space, range.first}) != 0);
    }
    for (const int32_t range : KeptGradients(plan)) is_kept_grad_[range] = true;
    for (const PlannedFetch& fetch : plan.fetches) {
      by_begin_.push_back(&fetch);
      if (!is_kept_grad_[fetch.range]) continue;
      gradients_.push_back({fetch.needed_at % plan.num_positions(), fetch.range});
    }
    std::sort(gradients_.begin(), gradients_.end());
    std::stable_sort(
        by_begin_.begin(), by_begin_.end(),
        [](const PlannedFetch* a, const PlannedFetch* b) { return GateOf(*a) < GateOf(*b); });
  }

  absl::Status Play() {
    for (const PlannedResident& resident : plan_.initial) {
      GEMINI_RETURN_IF_ERROR(Enter(resident.range, resident.slot.value(), Gate::EndOf(-1)));
      has_gradients_[resident.range] = true;
    }
    const int32_t n = plan_.num_positions();
    for (const PlannedFetch& fetch : plan_.fetches) {
      if (fetch.needed_at < n) continue;
      if (slot_of_[fetch.range] != fetch.slot.value() || pending_[fetch.range] != kNotPending) {
        return Wrong("range ", fetch.range, " is fetched for the next round into slot ",
                     fetch.slot.value(), " and begins elsewhere");
      }
      pending_[fetch.range] = fetch.needed_at - n;
    }
    const std::vector<int32_t> slots_at_start = slot_of_;
    const std::vector<int32_t> pending_at_start = pending_;
    GEMINI_RETURN_IF_ERROR(BeginFetches(Gate::EndOf(-1)));
    for (int32_t position = 0; position < n; ++position) {
      GEMINI_RETURN_IF_ERROR(BeginFetches(Gate::BeginOf(position)));
      GEMINI_RETURN_IF_ERROR(Use(position));
      GEMINI_RETURN_IF_ERROR(Evict(position));
      if (plan_.ends_with_update() && position == n - 1) GEMINI_RETURN_IF_ERROR(Update());
      GEMINI_RETURN_IF_ERROR(BeginFetches(Gate::EndOf(position)));
    }
    for (size_t i = 0; i < slot_of_.size(); ++i) {
      if (pending_[i] != kNotPending && pending_[i] < n) {
        return Wrong("range ", i, " is fetched for operator ", pending_[i],
                     ", which does not use it");
      }
      const int32_t pending = pending_[i] == kNotPending ? kNotPending : pending_[i] - n;
      if (slot_of_[i] != slots_at_start[i] || pending != pending_at_start[i]) {
        return Wrong("range ", i, " begins in slot ", slots_at_start[i], " (-1: none) and ends in ",
                     slot_of_[i]);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Enter(int32_t range, int64_t slot, Gate moment) {
    if (slot_of_[range] != kNobody) {
      return Wrong("range ", range, " is fetched at moment ", moment.value, " while it is in slot ",
                   slot_of_[range]);
    }
    for (int64_t i = slot; i < slot + plan_.ranges[range].num_bundles; ++i) {
      if (occupants_[i] != kNobody) {
        return Wrong("range ", range, " goes into slot ", i, " at moment ", moment.value,
                     ", where range ", occupants_[i], " is");
      }
      occupants_[i] = range;
    }
    slot_of_[range] = static_cast<int32_t>(slot);
    return absl::OkStatus();
  }

  void Leave(int32_t range) {
    const int64_t slot = slot_of_[range];
    std::fill_n(occupants_.begin() + slot, plan_.ranges[range].num_bundles, kNobody);
    slot_of_[range] = kNobody;
  }

  absl::Status BeginFetches(Gate moment) {
    for (; next_fetch_ < by_begin_.size() && GateOf(*by_begin_[next_fetch_]) == moment;
         ++next_fetch_) {
      const PlannedFetch& fetch = *by_begin_[next_fetch_];
      GEMINI_RETURN_IF_ERROR(Enter(fetch.range, fetch.slot.value(), moment));
      if (fetch.blank ? !is_kept_grad_[fetch.range] || has_gradients_[fetch.range]
                      : is_kept_grad_[fetch.range] && !has_gradients_[fetch.range]) {
        return Wrong("range ", fetch.range, " is fetched at moment ", moment.value,
                     fetch.blank ? " blank, and is not to be: only a gradient's first room is"
                                 : " and not blank, before it has gradients");
      }
      has_gradients_[fetch.range] = true;
      pending_[fetch.range] = fetch.needed_at;
    }
    return absl::OkStatus();
  }

  absl::Status Use(int32_t position) {
    // The gradients first: no operator names them where they are complete.
    for (; next_gradient_ < gradients_.size() && gradients_[next_gradient_].first == position;
         ++next_gradient_) {
      GEMINI_RETURN_IF_ERROR(UseRange(position, gradients_[next_gradient_].second));
    }
    for (int32_t i = plan_.first_use[position]; i < plan_.first_use[position + 1]; ++i) {
      GEMINI_RETURN_IF_ERROR(UseRange(position, plan_.uses[i]));
    }
    return absl::OkStatus();
  }

  absl::Status UseRange(int32_t position, int32_t range) {
    if (slot_of_[range] == kNobody) {
      return Wrong("operator ", position, " uses range ", range, ", which is not on DEVICE");
    }
    if (pending_[range] != kNotPending && pending_[range] != position) {
      return Wrong("operator ", position, " uses range ", range, ", fetched for ", pending_[range]);
    }
    pending_[range] = kNotPending;
    return absl::OkStatus();
  }

  absl::Status Evict(int32_t position) {
    for (; next_eviction_ < plan_.evictions.size() &&
           plan_.evictions[next_eviction_].after == position;
         ++next_eviction_) {
      const PlannedEviction& eviction = plan_.evictions[next_eviction_];
      const int32_t range = eviction.range;
      if (slot_of_[range] == kNobody || pending_[range] != kNotPending) {
        return Wrong(
            "range ", range, " is evicted after ", position,
            slot_of_[range] == kNobody ? ", where it is not on DEVICE" : ", before its use");
      }
      if (plan_.ends_with_update() && position == plan_.num_positions() - 1 && of_update_[range] &&
          !is_kept_grad_[range]) {
        return Wrong("range ", range, " is evicted after the update that reads it");
      }
      if (stayed_at_[range] == position) {
        return Wrong("range ", range, " stays after ", position, " and leaves after it");
      }
      if (eviction.stays) {
        stayed_at_[range] = position;
      } else {
        Leave(range);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Update() {
    for (size_t range = 0; range < has_gradients_.size(); ++range) {
      if (is_kept_grad_[range]) has_gradients_[range] = false;
    }
    for (size_t range = 0; range < slot_of_.size(); ++range) {
      if (slot_of_[range] == kNobody || !of_update_[range]) continue;
      if (plan_.ranges[range].kind == ChunkKind::kGrad) {
        return Wrong("the gradients of range ", range, " are on DEVICE at their update");
      }
      if (pending_[range] != kNotPending) {
        return Wrong("range ", range, " is fetched before its update, for position ",
                     pending_[range]);
      }
      Leave(static_cast<int32_t>(range));
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  // By range.
  std::vector<int32_t> slot_of_;
  std::vector<int32_t> pending_;     // The operator that it was fetched for.
  std::vector<bool> of_update_;      // The range is part of an update in HOST.
  std::vector<int32_t> stayed_at_;   // The position after which it was written back and stayed.
  std::vector<bool> is_kept_grad_;   // Gradients that are on DEVICE when the update begins.
  std::vector<bool> has_gradients_;  // It had its blank fetch since the last update.
  // Positions for which kept gradients are fetched, and their ranges.
  std::vector<std::pair<int32_t, int32_t>> gradients_;
  std::vector<int32_t> occupants_;  // By slot.
  std::vector<const PlannedFetch*> by_begin_;
  size_t next_fetch_ = 0;
  size_t next_eviction_ = 0;
  size_t next_gradient_ = 0;
};

}  // namespace

std::vector<int32_t> PlannedUpdate::used() const {
  std::vector<int32_t> there;
  for (const int32_t range : ranges.values) {
    if (range != kNone) there.push_back(range);
  }
  return there;
}

std::vector<int32_t> PlannedUpdate::changed() const {
  PlannedUpdate without_gradients = *this;
  without_gradients.ranges[ChunkKind::kGrad] = kNone;
  return without_gradients.used();
}

std::vector<bool> BehindWriteBacks(const Plan& plan) {
  std::vector<bool> is_behind(plan.evictions.size());
  std::vector<bool> stayed(plan.ranges.size());
  // What stays at the end of a round may be dropped in the next one.
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      const PlannedEviction& eviction = plan.evictions[i];
      is_behind[i] = eviction.writes_back || stayed[eviction.range];
      stayed[eviction.range] = eviction.stays;
    }
  }
  return is_behind;
}

absl::Status CheckPlan(const Plan& plan) {
  GEMINI_RETURN_IF_ERROR(CheckShape(plan));
  GEMINI_RETURN_IF_ERROR(CheckUpdates(plan));
  GEMINI_RETURN_IF_ERROR(CheckWriteBacks(plan));
  return Round(plan).Play();
}

}  // namespace gemini
