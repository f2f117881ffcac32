// SPDX-License-Identifier: Apache-2.0
#include "server/leases/admission.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "gemini/byte_size.h"
#include "gemini/layout.h"

namespace gemini::server {

void Admission::Open(WaitingLease newcomer, bool later) {
  // Nobody has a part of a slab. A floor beyond the capacity is refused as it is.
  const int64_t capacity_bytes = book_.tier(Tier::kDevice).capacity_bytes;
  if (device_grain_bytes_ > kPageBytes) {
    int64_t& floor_bytes = newcomer.floor[Tier::kDevice];
    int64_t& want_bytes = newcomer.want[Tier::kDevice];
    if (floor_bytes <= capacity_bytes) floor_bytes = RoundUp(floor_bytes, device_grain_bytes_);
    want_bytes =
        std::max(floor_bytes, RoundUp(std::min(want_bytes, capacity_bytes), device_grain_bytes_));
  }
  waiting_.push_back(newcomer);
  if (!later && TryLease(waiting_.back())) waiting_.pop_back();
}

void Admission::TryWaiting() {
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    waiting = TryLease(*waiting) ? waiting_.erase(waiting) : std::next(waiting);
  }
  if (waiting_.empty()) GrowBack();
}

std::deque<WaitingLease>::iterator Admission::FindWaiting(uint64_t session) {
  return std::ranges::find(waiting_, session, &WaitingLease::session);
}

bool Admission::Drop(uint64_t session) {
  const auto found = FindWaiting(session);
  if (found == waiting_.end()) return false;
  waiting_.erase(found);
  return true;
}

bool Admission::EndPatience(uint64_t session) {
  const auto found = FindWaiting(session);
  if (found == waiting_.end()) return false;
  (found->asked ? found->patience_over : found->waited) = true;
  return true;
}

bool Admission::AnswersEpochs(uint64_t session, const LeaseTerms& terms) const {
  return terms.takes_epochs && !terms.fenced && !terms.reclaiming && !handlers_.is_stopped(session);
}

Admission::Supply Admission::FindSupply(const WaitingLease& waiting) const {
  const TierBudget device = book_.tier(Tier::kDevice);
  Supply supply;
  if (waiting.want[Tier::kDevice] > 0) {
    supply.lacking_bytes = LackingDevice(waiting.session);
  }
  supply.coming_bytes = device.free_bytes() - supply.lacking_bytes + device.reclaiming_bytes;
  for (const auto& [session, terms] : book_.leases()) {
    if (!AnswersEpochs(session, terms)) continue;
    const BudgetShare share = {
        .session = session,
        .granted_bytes = terms.device_target,
        .floor_bytes = std::min(terms.floor[Tier::kDevice], terms.device_target)};
    supply.asked_bytes += terms.granted[Tier::kDevice] - terms.device_target;
    supply.slack_bytes += share.granted_bytes - share.floor_bytes;
    // A lease that is still being made can be asked once it is.
    if (terms.made) supply.shares.push_back(share);
  }
  supply.coming_bytes += supply.asked_bytes;
  return supply;
}

Admission::Promise Admission::PromiseDevice(const WaitingLease& waiting,
                                            const Supply& supply) const {
  int64_t num_jobs = 0;
  for (const WaitingLease& lease : waiting_) {
    if (&lease == &waiting || lease.want[Tier::kDevice] > 0) ++num_jobs;
  }
  for (const auto& [session, terms] : book_.leases()) {
    if (!terms.reclaiming && terms.want[Tier::kDevice] > 0) ++num_jobs;
  }
  Promise promise;
  const int64_t there_bytes = book_.tier(Tier::kDevice).capacity_bytes - supply.lacking_bytes;
  promise.fair_bytes =
      std::max<int64_t>(0, there_bytes) / num_jobs / device_grain_bytes_ * device_grain_bytes_;
  std::vector<Newcomer> newcomers;
  size_t own = 0;
  for (const WaitingLease& lease : waiting_) {
    if (&lease == &waiting) own = newcomers.size();
    if (&lease != &waiting && !lease.asked) continue;
    const int64_t floor_bytes = lease.floor[Tier::kDevice];
    newcomers.push_back({.floor_bytes = floor_bytes,
                         .target_bytes = std::min(lease.want[Tier::kDevice],
                                                  std::max(floor_bytes, promise.fair_bytes))});
  }
  const std::vector<int64_t> promised =
      Promises(newcomers, supply.coming_bytes + supply.slack_bytes);
  promise.fits = !promised.empty();
  for (size_t i = 0; i < newcomers.size(); ++i) {
    const int64_t bytes = promise.fits ? promised[i] : newcomers[i].floor_bytes;
    if (i == own) {
      promise.own_bytes = bytes;
    } else {
      promise.others_bytes += bytes;
      promise.others_floor_bytes += newcomers[i].floor_bytes;
    }
  }
  return promise;
}

bool Admission::TryLease(WaitingLease& waiting) {
  const auto refuse = [&](Tier lacking) {
    handlers_.refuse(waiting, lacking);
    return true;
  };
  const Supply supply = FindSupply(waiting);
  const Promise promise = PromiseDevice(waiting, supply);
  TierMap<int64_t> granted;
  for (Tier tier : kAllTiers) {
    const TierBudget budget = book_.tier(tier);
    // What others gave way for is not there for those who came later.
    const int64_t reserved = tier == Tier::kDevice ? promise.others_bytes : 0;
    granted[tier] =
        std::min(waiting.want[tier], std::max<int64_t>(0, budget.free_bytes() - reserved));
    // Bytes on their way back come within a time that only depends on the kernel: worth the wait,
    // as when a trainer is started again right after it was killed.
    const int64_t soon =
        std::max<int64_t>(0, budget.free_bytes() + budget.reclaiming_bytes - reserved);
    const bool worth_waiting = std::min(waiting.want[tier], soon) > granted[tier];
    if (worth_waiting && soon >= waiting.floor[tier]) return false;
  }
  for (Tier tier : {Tier::kHost, Tier::kNvme}) {
    if (granted[tier] < waiting.floor[tier]) return refuse(tier);
  }
  int64_t& device_bytes = granted[Tier::kDevice];
  const TierBudget device = book_.tier(Tier::kDevice);
  const int64_t free_bytes = device.free_bytes() - supply.lacking_bytes;
  const int64_t there_bytes = std::max<int64_t>(0, free_bytes - promise.others_bytes);
  if (device_bytes > there_bytes) {
    // What is on its way back may be the machine's memory. Others may go on giving some back for
    // ever, so this wait has an end of its own.
    const bool more_comes =
        device.reclaiming_bytes > 0 || book_.tier(Tier::kHost).reclaiming_bytes > 0;
    if (more_comes && !waiting.waited && !waiting.asked) {
      if (!std::exchange(waiting.has_patience, true)) handlers_.begin_patience(waiting.session);
      return false;
    }
    device_bytes = there_bytes;
  }
  if (device_bytes >= promise.own_bytes) {
    // What came beside its part goes to those who gave way for it, and to it: see GrowBack.
    if (waiting.asked && waiting.takes_epochs) device_bytes = promise.own_bytes;
  } else if (waiting.patience_over) {
    device_bytes = std::max(device_bytes,
                            std::min(promise.own_bytes, free_bytes - promise.others_floor_bytes));
    if (device_bytes < waiting.floor[Tier::kDevice]) return refuse(Tier::kDevice);
  } else if (!promise.fits) {
    // Nor is it refused, for who was asked for it may yet give enough: see AskToGiveWay.
    if (waiting.asked && supply.lacking_bytes > 0) return false;
    return refuse(Tier::kDevice);
  } else {
    AskToGiveWay(waiting, promise, supply);
    return false;
  }
  LeaseTerms terms = {.want = waiting.want,
                      .floor = waiting.floor,
                      .granted = granted,
                      .device_target = device_bytes,
                      .takes_epochs = waiting.takes_epochs};
  terms.want[Tier::kDevice] =
      std::min(waiting.want[Tier::kDevice], book_.tier(Tier::kDevice).capacity_bytes);
  book_.Open(waiting.session, terms);
  handlers_.admit(waiting);
  return true;
}

void Admission::AskToGiveWay(WaitingLease& waiting, const Promise& promise, const Supply& supply) {
  // What the machine has changes with all that its programs do: no more is asked for before those
  // who were asked have answered.
  if (waiting.asked && supply.lacking_bytes > 0 && supply.asked_bytes > 0) return;
  int64_t needed_bytes = promise.own_bytes + promise.others_bytes - supply.coming_bytes;
  if (needed_bytes > 0) {
    if (supply.lacking_bytes > 0) {
      // A machine that gets so much back may say that it has a little less: asking twice takes
      // twice as long.
      int64_t most_bytes = 0;
      for (const BudgetShare& share : supply.shares) {
        most_bytes += share.granted_bytes - share.floor_bytes;
      }
      const int64_t margin_bytes = needed_bytes / 64 / device_grain_bytes_ * device_grain_bytes_;
      needed_bytes = std::max(needed_bytes, std::min(needed_bytes + margin_bytes, most_bytes));
    }
    // For a floor as few are disturbed as can be; for a wish, those first who have more than their
    // part. Where the slack is in a lease that is still being made, nobody is asked before that.
    const bool is_wish = promise.own_bytes > waiting.floor[Tier::kDevice];
    const std::vector<NewShare> smaller =
        is_wish ? GiveWayFairly(supply.shares, needed_bytes, promise.fair_bytes)
                : GiveWay(supply.shares, needed_bytes);
    for (const NewShare& share : smaller) SetTarget(share.session, share.granted_bytes);
  }
  if (!std::exchange(waiting.asked, true)) handlers_.begin_patience(waiting.session);
}

void Admission::SetTarget(uint64_t session, int64_t device_bytes) {
  book_.SetDeviceTarget(session, device_bytes);
  handlers_.post_target(session);
}

int64_t Admission::LackingDevice(std::optional<uint64_t> newcomer) const {
  if (handlers_.device_room == nullptr) return 0;
  const int64_t free_bytes = book_.tier(Tier::kDevice).free_bytes();
  const int64_t room_bytes = handlers_.device_room(newcomer);
  if (room_bytes >= free_bytes) return 0;
  return RoundUp(free_bytes - room_bytes, device_grain_bytes_);
}

void Admission::GrowBack() {
  bool grows = false;
  std::vector<BudgetShare> shares;
  for (const auto& [session, terms] : book_.leases()) {
    if (!AnswersEpochs(session, terms) || !terms.made) continue;
    const int64_t granted_bytes = terms.granted[Tier::kDevice];
    // Whoever was asked for a newcomer that is gone, and did not answer yet, keeps what it has.
    if (terms.device_target < granted_bytes) SetTarget(session, granted_bytes);
    shares.push_back({.session = session,
                      .granted_bytes = granted_bytes,
                      .want_bytes = terms.want[Tier::kDevice]});
    grows = grows || granted_bytes < terms.want[Tier::kDevice];
  }
  if (!grows) return;
  const int64_t there_bytes = book_.tier(Tier::kDevice).free_bytes() - LackingDevice(std::nullopt);
  // Its own before it is told.
  for (const NewShare& share : ShareOut(shares, there_bytes)) {
    SetTarget(share.session, share.granted_bytes);
  }
}

}  // namespace gemini::server
