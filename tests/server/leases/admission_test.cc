// SPDX-License-Identifier: Apache-2.0
#include "server/leases/admission.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/leases/admission_fixture.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(AdmissionTest, ANewcomerHasWhatItWantsOrWhatIsFree) {
  Open(1, {{60, 700, 0}}, {{10, 10, 0}}, false);
  Open(2, {{60, 700, 400}}, {{40, 300, 400}}, false);
  EXPECT_THAT(Told(), ElementsAre("admit 1: 60", "admit 2: 40"));
  EXPECT_EQ(book_.leases().at(2).granted, (TierMap<int64_t>{{40, 300, 400}}));
  EXPECT_EQ(book_.tier(Tier::kNvme).free_bytes(), 100);
}

TEST_F(AdmissionTest, WithoutRoomForAFloorANewcomerIsRefusedAndNobodyIsAsked) {
  Hold(1, {{80, 900, 0}}, {{60, 0, 0}});
  Open(2, {{10, 101, 0}}, {{10, 101, 0}});
  Open(3, Device(41), Device(41));
  Open(4, Device(kMost), Device(kMost));
  EXPECT_THAT(Told(), ElementsAre("refuse 2: HOST", "refuse 3: DEVICE", "refuse 4: DEVICE"));
  EXPECT_EQ(Target(1), 80);
}

TEST_F(AdmissionTest, AFloorIsTakenFromWhoHasMostAboveItsOwnAndGivenOnlyOnceItIsVacated) {
  Hold(1, Device(60), Device(50));
  Hold(2, Device(40), Device(10));
  Open(3, Device(15), Device(15));
  EXPECT_THAT(Told(), ElementsAre("target 2: 25", "patience 3"));
  EXPECT_EQ(Granted(2), 40);  // Asked for, not taken.
  admission_.TryWaiting();
  EXPECT_THAT(Told(), IsEmpty());
  Vacate(2);
  EXPECT_THAT(Told(), ElementsAre("admit 3: 15"));
  EXPECT_EQ(Granted(2), 25);
}

TEST_F(AdmissionTest, AWishIsTakenFromWhoHasMoreThanAnEqualPart) {
  Hold(1, Device(75), Device(10));
  Hold(2, Device(25), Device(0));
  Open(3, Device(100), Device(5));
  // A third is 33: the second has less than that.
  EXPECT_THAT(Told(), ElementsAre("target 1: 42", "patience 3"));
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("admit 3: 33"));
}

TEST_F(AdmissionTest, WhatWasVacatedForOneIsNotThereForThoseWhoCameLater) {
  Hold(1, Device(50), Device(0));
  Hold(2, Device(50), Device(0));
  Open(3, Device(60), Device(60));
  EXPECT_THAT(Told(), ElementsAre("target 1: 0", "target 2: 40", "patience 3"));
  Vacate(1);
  EXPECT_THAT(Told(), IsEmpty());
  // 50 are free, and promised.
  Open(4, Device(20), Device(20));
  EXPECT_THAT(Told(), ElementsAre("target 2: 20", "patience 4"));
  Vacate(2);
  EXPECT_THAT(Told(), ElementsAre("admit 3: 60", "admit 4: 20"));
}

TEST_F(AdmissionTest, FloorsOfAllWhoWaitArePromisedBeforeTheWishOfTheFirst) {
  Hold(1, Device(100), Device(40));
  Open(2, Device(50), Device(10));
  EXPECT_THAT(Told(), ElementsAre("target 1: 50", "patience 2"));
  // 60 are above the floor of the first, and 50 was the second's part; a third is 33.
  Open(3, Device(30), Device(30));
  EXPECT_THAT(Told(), ElementsAre("target 1: 40", "patience 3"));
  // A floor beyond what all who wait have left is refused by subtraction, whatever its size.
  Open(4, Device(kMost), Device(kMost));
  Open(5, Device(21), Device(21));
  EXPECT_THAT(Told(), ElementsAre("refuse 4: DEVICE", "refuse 5: DEVICE"));
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("admit 2: 30", "admit 3: 30"));
}

TEST_F(AdmissionTest, WhoCameFirstIsTriedFirst) {
  Hold(1, Device(100), Device(100), false);
  book_.BeginReclaim(1);
  Open(2, Device(60), Device(60));
  Open(3, Device(60), Device(60));
  Open(4, Device(30), Device(30));
  EXPECT_THAT(Told(), IsEmpty());  // The bytes are on their way back.
  book_.FinishReclaim(1);
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("admit 2: 60", "refuse 3: DEVICE", "admit 4: 30"));
}

TEST_F(AdmissionTest, ANewcomerThatComesLaterThanATurnWaitsForIt) {
  admission_.Open({.session = 1, .want = Device(10)}, /*later=*/true);
  EXPECT_THAT(Told(), IsEmpty());
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("admit 1: 10"));
}

TEST_F(AdmissionTest, WhoDoesNotAnswerCostsTheNewcomerItsWishButNotItsFloor) {
  Hold(1, Device(90), Device(0));
  Open(2, Device(50), Device(10));
  EXPECT_THAT(Told(), ElementsAre("target 1: 50", "patience 2"));
  EXPECT_FALSE(admission_.EndPatience(1));
  EXPECT_TRUE(admission_.EndPatience(2));
  admission_.TryWaiting();
  // The one that did not answer keeps what it has.
  EXPECT_THAT(Told(), ElementsAre("admit 2: 10", "target 1: 90"));
  Open(3, Device(5), Device(5));
  EXPECT_THAT(Told(), ElementsAre("target 1: 85", "patience 3"));
  EXPECT_TRUE(admission_.EndPatience(3));
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("refuse 3: DEVICE", "target 1: 90"));
}

TEST_F(AdmissionTest, WhoGivesUpItsPatienceLeavesTheFloorsOfOthers) {
  Hold(1, Device(70), Device(0));
  Open(2, Device(50), Device(5));
  EXPECT_THAT(Told(), ElementsAre("target 1: 50", "patience 2"));
  Open(3, Device(25), Device(25));
  EXPECT_THAT(Told(), ElementsAre("target 1: 42", "patience 3"));
  EXPECT_TRUE(admission_.EndPatience(2));
  admission_.TryWaiting();
  // 30 are free.
  EXPECT_THAT(Told(), ElementsAre("admit 2: 5", "admit 3: 25", "target 1: 70"));
}

TEST_F(AdmissionTest, WhatCameBesideThePartOfANewcomerGoesBackToWhoGaveWay) {
  Hold(1, Device(60), Device(0));
  Hold(2, Device(40), Device(0), /*takes_epochs=*/false);
  Open(3, Device(80), Device(5));
  EXPECT_THAT(Told(), ElementsAre("target 1: 27", "patience 3"));
  Close(2);
  EXPECT_THAT(Told(), IsEmpty());  // Its part is 50 now, and 33 of that are not vacated yet.
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("admit 3: 50", "target 1: 50"));
}

TEST_F(AdmissionTest, BytesOnTheirWayBackAreAskedOfNobody) {
  Hold(1, Device(60), Device(0));
  Hold(2, Device(40), Device(40), /*takes_epochs=*/false);
  book_.BeginReclaim(2);
  Open(3, Device(50), Device(50));
  EXPECT_THAT(Told(), ElementsAre("target 1: 50", "patience 3"));
}

TEST_F(AdmissionTest, OnlyThoseWhoCanAnswerAreAsked) {
  Hold(1, Device(30), Device(0));
  Hold(2, Device(30), Device(0));
  Hold(3, Device(20), Device(0), /*takes_epochs=*/false);
  Hold(4, Device(20), Device(0));
  stopped_.insert(1);
  book_.Fence(2);
  Open(5, Device(20), Device(20));
  EXPECT_THAT(Told(), ElementsAre("target 4: 0", "patience 5"));
  Open(6, Device(1), Device(1));
  EXPECT_THAT(Told(), ElementsAre("refuse 6: DEVICE"));
  stopped_.clear();
  Open(7, Device(30), Device(30));
  EXPECT_THAT(Told(), ElementsAre("target 1: 0", "patience 7"));
}

TEST_F(AdmissionTest, ALeaseThatIsStillBeingMadeIsAskedOnceItIs) {
  Open(1, Device(100), Device(0));
  Open(2, Device(40), Device(40));
  EXPECT_THAT(Told(), ElementsAre("admit 1: 100", "patience 2"));
  book_.SetMade(1);
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("target 1: 60"));
}

TEST_F(AdmissionTest, WhenNobodyWaitsWhatIsFreeGoesToWhoLacksMost) {
  Hold(1, Device(60), Device(0));
  Hold(2, Device(40), Device(40), false);
  Open(3, Device(30), Device(30));
  EXPECT_THAT(Told(), ElementsAre("target 1: 30", "patience 3"));
  // The newcomer goes: nothing is taken from the first, who has not answered.
  EXPECT_TRUE(admission_.Drop(3));
  EXPECT_FALSE(admission_.Drop(3));
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("target 1: 60"));
  Open(3, Device(30), Device(30));
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("target 1: 30", "patience 3", "admit 3: 30"));
  book_.SetMade(3);
  Close(2);
  EXPECT_THAT(Told(), ElementsAre("target 1: 60"));
  EXPECT_EQ(book_.tier(Tier::kDevice).free_bytes(), 10);
}

TEST_F(AdmissionTest, FloorsThatPlansRaiseAreKept) {
  Hold(1, Device(100), Device(0));
  book_.SetDeviceFloor(1, 70);
  Open(2, Device(50), Device(20));
  EXPECT_THAT(Told(), ElementsAre("target 1: 70", "patience 2"));
  Open(3, Device(11), Device(11));
  EXPECT_THAT(Told(), ElementsAre("refuse 3: DEVICE"));
}

TEST_F(AdmissionTest, NobodyHasAPartOfASlab) {
  constexpr int64_t kSlab = 8192;
  LeaseBook book(owner_, Device(10 * kSlab));
  Admission admission(
      book, kSlab,
      {.admit =
           [&](const WaitingLease& lease) {
             const LeaseTerms& terms = book.leases().at(lease.session);
             told_.push_back(absl::StrCat("admit ", terms.granted[Tier::kDevice], ", floor ",
                                          terms.floor[Tier::kDevice]));
           },
       .refuse = [&](const WaitingLease&, Tier) { told_.push_back("refuse"); },
       .begin_patience = [](uint64_t) {},
       .post_target =
           [&](uint64_t session) {
             told_.push_back(absl::StrCat("target ", book.leases().at(session).device_target));
           },
       .is_stopped = [](uint64_t) { return false; }});
  const auto open = [&](uint64_t session, int64_t want, int64_t floor) {
    admission.Open({.session = session,
                    .want = Device(want),
                    .floor = Device(floor),
                    .takes_epochs = session == 2},
                   /*later=*/false);
  };
  open(1, kSlab + 1, 1);
  open(2, kMost, 0);
  open(3, kMost, kMost);
  EXPECT_THAT(Told(), ElementsAre("admit 16384, floor 8192", "admit 65536, floor 0", "refuse"));
  // A third of ten slabs is three.
  book.SetMade(2);
  open(4, kMost, 0);
  EXPECT_THAT(Told(), ElementsAre(absl::StrCat("target ", 5 * kSlab)));
}

// A slow, obvious model: who holds what, and what was said of it, by nothing but the handlers.
struct Holder {
  TierMap<int64_t> want;
  TierMap<int64_t> granted;
  int64_t floor_bytes = 0;
  int64_t target_bytes = 0;
  bool takes_epochs = false;
  bool gone = false;  // Its bytes are on their way back.
};

// Property: whatever clients do, in each tier capacity = what holders have + what is on its way
// back + what is free, at any moment; nobody is left below its floor or has more than it wants;
// while somebody waits targets only fall, and who waits is answered once, in time.
TEST_F(AdmissionTest, SumOfBudgets) {
  std::mt19937_64 random(/*seed=*/5);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  std::map<uint64_t, Holder> holders;
  std::map<uint64_t, WaitingLease> waiting;
  std::vector<TierMap<int64_t>> vacating;
  std::set<uint64_t> patient;
  int64_t admitted = 0, refused = 0, asked = 0, grown = 0, given = 0;
  const auto ended = [&](uint64_t session) {
    ASSERT_EQ(waiting.erase(session), 1u) << "answered twice";
    patient.erase(session);
  };
  Admission admission(
      book_, 1,
      {.admit =
           [&](const WaitingLease& lease) {
             ++admitted;
             const WaitingLease wish = waiting.at(lease.session);
             ended(lease.session);
             const TierMap<int64_t>& granted = book_.leases().at(lease.session).granted;
             for (Tier tier : kAllTiers) {
               ASSERT_GE(granted[tier], wish.floor[tier]);
               ASSERT_LE(granted[tier], wish.want[tier]);
             }
             holders[lease.session] = {.want = wish.want,
                                       .granted = granted,
                                       .floor_bytes = wish.floor[Tier::kDevice],
                                       .target_bytes = granted[Tier::kDevice],
                                       .takes_epochs = wish.takes_epochs};
           },
       .refuse =
           [&](const WaitingLease& lease, Tier lacking) {
             ++refused;
             const WaitingLease wish = waiting.at(lease.session);
             // Never where its floor is free and nobody else waits for it.
             if (waiting.size() == 1) {
               ASSERT_LT(book_.tier(lacking).free_bytes(), wish.floor[lacking]);
             }
             ended(lease.session);
           },
       .begin_patience =
           [&](uint64_t session) { ASSERT_TRUE(patient.insert(session).second) << session; },
       .post_target =
           [&](uint64_t session) {
             Holder& holder = holders.at(session);
             const int64_t target = book_.leases().at(session).device_target;
             ASSERT_TRUE(holder.takes_epochs && !holder.gone && !stopped_.contains(session));
             ASSERT_LE(target, holder.want[Tier::kDevice]);
             if (target < holder.target_bytes) {
               ++asked;
               ASSERT_FALSE(waiting.empty());
               ASSERT_GE(target, std::min(holder.floor_bytes, holder.target_bytes));
             } else {
               ++grown;
               ASSERT_TRUE(waiting.empty());
               // What it did not have is its own when it is told.
               int64_t& granted = holder.granted[Tier::kDevice];
               granted = std::max(granted, target);
             }
             holder.target_bytes = target;
           },
       .is_stopped = [&](uint64_t session) { return stopped_.contains(session); }});
  const auto any = [&](const auto& map) {
    return std::next(map.begin(), below(map.size()))->first;
  };
  uint64_t next_session = 1;
  for (int step = 0; step < 100'000 && !HasFatalFailure(); ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    switch (below(9)) {
      case 0: {
        if (holders.size() + waiting.size() > 7) break;
        WaitingLease lease = {.session = next_session++, .takes_epochs = random() % 4 != 0};
        for (Tier tier : kAllTiers) {
          lease.want[tier] = below(kCapacity[tier] / (tier == Tier::kDevice ? 1 : 4));
          lease.floor[tier] = lease.want[tier] == 0 ? 0 : below(lease.want[tier]) / 2;
        }
        if (random() % 50 == 0) lease.want[Tier::kDevice] = lease.floor[Tier::kDevice] = kMost;
        waiting[lease.session] = lease;
        admission.Open(lease, /*later=*/random() % 4 == 0);
        break;
      }
      case 1: {  // A client answers.
        if (holders.empty()) break;
        const uint64_t session = any(holders);
        Holder& holder = holders[session];
        if (holder.gone || holder.target_bytes >= holder.granted[Tier::kDevice]) break;
        ++given;
        vacating.push_back(book_.VacateDevice(session));
        ASSERT_EQ(vacating.back(), Device(holder.granted[Tier::kDevice] - holder.target_bytes));
        holder.granted[Tier::kDevice] = holder.target_bytes;
        break;
      }
      case 2:
        if (vacating.empty()) break;
        book_.FinishVacating(vacating.back());
        vacating.pop_back();
        admission.TryWaiting();
        break;
      case 3: {  // A client goes.
        if (holders.empty()) break;
        const uint64_t session = any(holders);
        if (std::exchange(holders[session].gone, true)) break;
        book_.Fence(session);
        book_.BeginReclaim(session);
        admission.TryWaiting();
        break;
      }
      case 4: {
        if (holders.empty()) break;
        const uint64_t session = any(holders);
        if (!holders[session].gone) break;
        book_.FinishReclaim(session);
        holders.erase(session);
        admission.TryWaiting();
        break;
      }
      case 5: {
        if (waiting.empty()) break;
        const uint64_t session = any(waiting);
        if (random() % 2 == 0) {
          ASSERT_TRUE(admission.Drop(session));
          waiting.erase(session);
          patient.erase(session);
          admission.TryWaiting();
        } else if (patient.contains(session)) {
          // Each wait ends here, unless bytes are on their way back that help.
          ASSERT_TRUE(admission.EndPatience(session));
          admission.TryWaiting();
          const bool coming = book_.tier(Tier::kDevice).reclaiming_bytes > 0 ||
                              book_.tier(Tier::kHost).reclaiming_bytes > 0 ||
                              book_.tier(Tier::kNvme).reclaiming_bytes > 0;
          ASSERT_TRUE(coming || !waiting.contains(session));
        }
        break;
      }
      case 6:
        if (!holders.empty()) book_.SetMade(any(holders));
        admission.TryWaiting();
        break;
      case 7: {  // A plan is made.
        if (holders.empty()) break;
        const uint64_t session = any(holders);
        Holder& holder = holders[session];
        holder.floor_bytes = below(holder.granted[Tier::kDevice] + 1);
        book_.SetDeviceFloor(session, holder.floor_bytes);
        break;
      }
      case 8: {
        if (holders.empty()) break;
        const uint64_t session = any(holders);
        if (stopped_.erase(session) == 0 && random() % 4 == 0) stopped_.insert(session);
        break;
      }
    }
    for (Tier tier : kAllTiers) {
      int64_t leased = 0, reclaiming = 0;
      for (const auto& [session, holder] : holders) {
        (holder.gone ? reclaiming : leased) += holder.granted[tier];
      }
      for (const TierMap<int64_t>& bytes : vacating) reclaiming += bytes[tier];
      const TierBudget budget = book_.tier(tier);
      ASSERT_EQ(budget.leased_bytes, leased);
      ASSERT_EQ(budget.reclaiming_bytes, reclaiming);
      ASSERT_EQ(budget.free_bytes(), kCapacity[tier] - leased - reclaiming);
      ASSERT_GE(budget.free_bytes(), 0);
    }
    for (const auto& [session, holder] : holders) {
      const LeaseTerms& terms = book_.leases().at(session);
      ASSERT_EQ(terms.granted, holder.granted);
      ASSERT_EQ(terms.device_target, holder.target_bytes);
      ASSERT_LE(terms.device_target, terms.granted[Tier::kDevice]);
    }
  }
  // The sequence did reach what it is about.
  EXPECT_GT(admitted, 1000);
  EXPECT_GT(refused, 100);
  EXPECT_GT(asked, 200);
  EXPECT_GT(given, 100);
  EXPECT_GT(grown, 100);
}

}  // namespace
}  // namespace gemini::server
