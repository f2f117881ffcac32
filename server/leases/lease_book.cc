// SPDX-License-Identifier: Apache-2.0
#include "server/leases/lease_book.h"

#include "gemini/system/check.h"

namespace gemini::server {

const LeaseTerms& LeaseBook::Open(uint64_t session, const LeaseTerms& terms) {
  GEMINI_CHECK(budgets_.Lease(terms.granted).ok());
  const auto [opened, is_new] = leases_.emplace(session, terms);
  GEMINI_CHECK(is_new);
  return opened->second;
}

void LeaseBook::SetDeviceFloor(uint64_t session, int64_t bytes) {
  leases_.at(session).floor[Tier::kDevice] = bytes;
}

void LeaseBook::SetDeviceTarget(uint64_t session, int64_t bytes) {
  LeaseTerms& terms = leases_.at(session);
  int64_t& granted_bytes = terms.granted[Tier::kDevice];
  if (bytes > granted_bytes) {
    GEMINI_CHECK(budgets_.Lease({{bytes - granted_bytes, 0, 0}}).ok());
    granted_bytes = bytes;
  }
  terms.device_target = bytes;
}

TierMap<int64_t> LeaseBook::VacateDevice(uint64_t session) {
  LeaseTerms& terms = leases_.at(session);
  const TierMap<int64_t> vacated = {{terms.granted[Tier::kDevice] - terms.device_target, 0, 0}};
  budgets_.BeginReclaim(vacated);
  terms.granted[Tier::kDevice] = terms.device_target;
  return vacated;
}

void LeaseBook::BeginReclaim(uint64_t session) {
  LeaseTerms& terms = leases_.at(session);
  GEMINI_CHECK(!terms.reclaiming);
  terms.reclaiming = true;
  budgets_.BeginReclaim(terms.granted);
}

void LeaseBook::FinishReclaim(uint64_t session) {
  const auto found = leases_.find(session);
  GEMINI_CHECK(found != leases_.end() && found->second.reclaiming);
  budgets_.FinishReclaim(found->second.granted);
  leases_.erase(found);
}

}  // namespace gemini::server
