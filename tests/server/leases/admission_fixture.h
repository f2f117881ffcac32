// SPDX-License-Identifier: Apache-2.0
// An admission with a lease book of its own, and what it told its owner.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/leases/admission.h"

namespace gemini::server {

inline constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
inline constexpr TierMap<int64_t> kCapacity = {{100, 1000, 500}};

inline TierMap<int64_t> Device(int64_t bytes) { return {{bytes, 0, 0}}; }

// An admission whose owner writes down what it is told. Sessions answer when a test says so.
class AdmissionTest : public ::testing::Test {
 protected:
  void Open(uint64_t session, const TierMap<int64_t>& want, const TierMap<int64_t>& floor,
            bool takes_epochs = true) {
    admission_.Open({.session = session,
                     .request = session,
                     .want = want,
                     .floor = floor,
                     .takes_epochs = takes_epochs},
                    /*later=*/false);
  }
  // A session with a lease that was made.
  void Hold(uint64_t session, const TierMap<int64_t>& want, const TierMap<int64_t>& floor,
            bool takes_epochs = true) {
    Open(session, want, floor, takes_epochs);
    ASSERT_TRUE(book_.leases().contains(session)) << "session " << session;
    book_.SetMade(session);
    told_.clear();
  }
  // The client of `session` vacates what it was asked for, and the kernel has it at once.
  void Vacate(uint64_t session) {
    book_.FinishVacating(book_.VacateDevice(session));
    admission_.TryWaiting();
  }
  void Close(uint64_t session) {
    book_.BeginReclaim(session);
    book_.FinishReclaim(session);
    admission_.TryWaiting();
  }
  int64_t Granted(uint64_t session) const {
    return book_.leases().at(session).granted[Tier::kDevice];
  }
  int64_t Target(uint64_t session) const { return book_.leases().at(session).device_target; }
  // Since the last call.
  std::vector<std::string> Told() { return std::exchange(told_, {}); }

  OwnerThread owner_;
  LeaseBook book_{owner_, kCapacity};
  std::set<uint64_t> stopped_;
  std::vector<std::string> told_;
  int64_t room_ = kMost;  // Of the machine.
  Admission admission_{
      book_,
      /*device_grain_bytes=*/1,
      {.admit =
           [this](const WaitingLease& lease) {
             told_.push_back(absl::StrCat("admit ", lease.session, ": ", Granted(lease.session)));
             if (room_ < kMost) room_ -= Granted(lease.session);
           },
       .refuse =
           [this](const WaitingLease& lease, Tier lacking) {
             told_.push_back(absl::StrCat("refuse ", lease.session, ": ", TierName(lacking)));
           },
       .begin_patience =
           [this](uint64_t session) { told_.push_back(absl::StrCat("patience ", session)); },
       .post_target =
           [this](uint64_t session) {
             told_.push_back(absl::StrCat("target ", session, ": ", Target(session)));
           },
       .is_stopped = [this](uint64_t session) { return stopped_.contains(session); },
       .device_room = [this](std::optional<uint64_t>) { return room_; }}};
};

}  // namespace gemini::server
