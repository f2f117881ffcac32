// SPDX-License-Identifier: Apache-2.0
#include "client/host/pending_commits.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::client {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> TakeAll(PendingCommits& pending) {
  std::vector<int64_t> taken;
  while (const std::optional<BundleId> bundle = pending.Take()) taken.push_back(bundle->value());
  return taken;
}

TEST(PendingCommitsTest, GivesEachOnceInTheOrderGiven) {
  PendingCommits pending(5);
  EXPECT_EQ(pending.Take(), std::nullopt);
  pending.Expect({BundleId(3), BundleId(0), BundleId(4)});
  EXPECT_EQ(pending.count(), 3);
  EXPECT_TRUE(pending.awaits(BundleId(4)));
  EXPECT_FALSE(pending.awaits(BundleId(1)));
  EXPECT_THAT(TakeAll(pending), ElementsAre(3, 0, 4));
  EXPECT_EQ(pending.count(), 3);  // Taken is not committed.
}

TEST(PendingCommitsTest, WhoIsWaitedForGoesFirstAndOnlyOnce) {
  PendingCommits pending(6);
  pending.Expect({BundleId(0), BundleId(1), BundleId(2), BundleId(3), BundleId(4)});
  EXPECT_EQ(pending.Take(), BundleId(0));
  pending.Hurry(BundleId(3));
  pending.Hurry(BundleId(2));
  pending.Hurry(BundleId(3));
  pending.Hurry(BundleId(0));  // Taken already.
  pending.Hurry(BundleId(5));  // Not pending.
  EXPECT_THAT(TakeAll(pending), ElementsAre(3, 2, 1, 4));
}

TEST(PendingCommitsTest, WhatIsDoneMayBeExpectedAgain) {
  PendingCommits pending(2);
  for (int round = 0; round < 3; ++round) {
    pending.Expect({BundleId(0), BundleId(1)});
    pending.Done(BundleId(1));  // Without having been taken.
    EXPECT_EQ(pending.count(), 1);
    EXPECT_THAT(TakeAll(pending), ElementsAre(0));
    pending.Done(BundleId(0));
    EXPECT_EQ(pending.count(), 0);
  }
}

TEST(PendingCommitsTest, LookingAheadShowsTheOneThatIsTakenAndThoseToComeInTheirOrder) {
  PendingCommits pending(8);
  const auto seen = [&](size_t most) {
    std::vector<int64_t> bundles;
    pending.LookAhead([&](BundleId bundle) {
      bundles.push_back(bundle.value());
      return bundles.size() < most;
    });
    return bundles;
  };
  EXPECT_THAT(seen(9), ElementsAre());
  pending.Expect({BundleId(0), BundleId(1), BundleId(2), BundleId(3), BundleId(4), BundleId(5)},
                 {BundleId(1), BundleId(2)});
  EXPECT_EQ(pending.Take(), BundleId(0));
  pending.Hurry(BundleId(5));
  pending.GradientArrived(BundleId(2));
  EXPECT_THAT(seen(9), ElementsAre(0, 5, 2, 3, 4, 1));
  EXPECT_THAT(seen(1), ElementsAre(0));
  EXPECT_THAT(seen(3), ElementsAre(0, 5, 2));
  pending.Done(BundleId(0));
  EXPECT_THAT(seen(2), ElementsAre(5, 2));
  EXPECT_THAT(TakeAll(pending), ElementsAre(5, 2, 3, 4, 1));
  EXPECT_THAT(seen(9), ElementsAre(1));  // Taken last.
}

TEST(PendingCommitsTest, WhatWasTakenInVainIsGivenOutAgain) {
  PendingCommits pending(4);
  pending.Expect({BundleId(2), BundleId(1), BundleId(0), BundleId(3)});
  EXPECT_EQ(pending.Take(), BundleId(2));
  EXPECT_EQ(pending.Take(), BundleId(1));
  pending.Done(BundleId(2));
  pending.Hurry(BundleId(3));
  pending.ReturnAll();
  EXPECT_THAT(TakeAll(pending), ElementsAre(3, 0, 1));
}

TEST(PendingCommitsTest, WhoAwaitsItsGradientIsLastUntilItHasArrivedAndThenBeforeTheOthers) {
  PendingCommits pending(7);
  pending.Expect({BundleId(0), BundleId(1), BundleId(2), BundleId(3), BundleId(4), BundleId(5)},
                 /*late=*/{BundleId(2), BundleId(0), BundleId(1)});
  EXPECT_EQ(pending.count(), 6);
  EXPECT_EQ(pending.late_count(), 3);
  EXPECT_TRUE(pending.awaits_gradient(BundleId(1)));
  EXPECT_FALSE(pending.awaits_gradient(BundleId(3)));
  EXPECT_FALSE(pending.awaits_gradient(BundleId(6)));
  EXPECT_EQ(pending.Take(), BundleId(3));
  pending.GradientArrived(BundleId(2));
  pending.GradientArrived(BundleId(1));
  pending.GradientArrived(BundleId(1));  // Nothing new.
  pending.GradientArrived(BundleId(4));  // Was not late.
  pending.GradientArrived(BundleId(6));  // Not pending.
  EXPECT_FALSE(pending.awaits_gradient(BundleId(1)));
  EXPECT_FALSE(pending.awaits(BundleId(6)));
  EXPECT_EQ(pending.late_count(), 1);
  EXPECT_EQ(pending.count(), 6);
  EXPECT_THAT(TakeAll(pending), ElementsAre(2, 1, 4, 5, 0));
}

TEST(PendingCommitsTest, ThoseThatAwaitTheirGradientsGoInTheOrderGiven) {
  PendingCommits pending(4);
  pending.Expect({BundleId(3), BundleId(0), BundleId(2), BundleId(1)},
                 /*late=*/{BundleId(2), BundleId(3), BundleId(1)});
  EXPECT_THAT(TakeAll(pending), ElementsAre(0, 3, 2, 1));
  EXPECT_TRUE(pending.awaits_gradient(BundleId(3)));
  pending.GradientArrived(BundleId(3));  // Taken already: once only.
  EXPECT_FALSE(pending.awaits_gradient(BundleId(3)));
  EXPECT_EQ(pending.Take(), std::nullopt);
}

TEST(PendingCommitsTest, WhoIsWaitedForGoesFirstThoughItsGradientIsNotThere) {
  PendingCommits pending(5);
  pending.Expect({BundleId(0), BundleId(1), BundleId(2), BundleId(3), BundleId(4)},
                 /*late=*/{BundleId(0), BundleId(1), BundleId(2)});
  pending.Hurry(BundleId(1));
  pending.GradientArrived(BundleId(0));
  pending.Hurry(BundleId(4));
  EXPECT_EQ(pending.Take(), BundleId(1));
  EXPECT_TRUE(pending.awaits_gradient(BundleId(1)));
  pending.GradientArrived(BundleId(2));
  pending.Hurry(BundleId(2));  // Behind the one that is waited for longer.
  EXPECT_THAT(TakeAll(pending), ElementsAre(4, 2, 0, 3));
}

TEST(PendingCommitsTest, WhatWasTakenInVainAwaitsItsGradientStillAndGoesBehindTheOthers) {
  PendingCommits pending(6);
  pending.Expect({BundleId(5), BundleId(0), BundleId(1), BundleId(2), BundleId(3), BundleId(4)},
                 /*late=*/{BundleId(0), BundleId(1), BundleId(2)});
  pending.Hurry(BundleId(0));
  pending.GradientArrived(BundleId(2));
  EXPECT_EQ(pending.Take(), BundleId(0));
  EXPECT_EQ(pending.Take(), BundleId(2));
  EXPECT_EQ(pending.Take(), BundleId(5));
  pending.Done(BundleId(5));
  pending.ReturnAll();
  EXPECT_TRUE(pending.awaits_gradient(BundleId(0)));
  EXPECT_EQ(pending.late_count(), 2);
  EXPECT_EQ(pending.Take(), BundleId(2));
  pending.GradientArrived(BundleId(1));
  EXPECT_THAT(TakeAll(pending), ElementsAre(1, 3, 4, 0));
}

TEST(PendingCommitsTest, WhatIsCommittedAwaitsNoGradient) {
  PendingCommits pending(3);
  for (int round = 0; round < 3; ++round) {
    pending.Expect({BundleId(0), BundleId(1), BundleId(2)}, /*late=*/{BundleId(0), BundleId(1)});
    pending.Done(BundleId(0));  // Without its gradient.
    EXPECT_FALSE(pending.awaits_gradient(BundleId(0)));
    EXPECT_EQ(pending.late_count(), 1);
    pending.GradientArrived(BundleId(0));
    pending.GradientArrived(BundleId(1));
    EXPECT_EQ(pending.late_count(), 0);
    EXPECT_THAT(TakeAll(pending), ElementsAre(1, 2));
    pending.Done(BundleId(1));
    pending.Done(BundleId(2));
    EXPECT_EQ(pending.count(), 0);
  }
}

TEST(PendingCommitsTest, WhatWentOutOfTurnOnceComesInItsTurnWhenItIsExpectedAgain) {
  PendingCommits pending(4);
  pending.Expect({BundleId(0), BundleId(1), BundleId(2), BundleId(3)}, /*late=*/{BundleId(1)});
  pending.GradientArrived(BundleId(1));
  pending.Hurry(BundleId(3));
  for (const int64_t bundle : {3, 1, 0, 2}) {
    EXPECT_EQ(pending.Take(), BundleId(bundle));
    pending.Done(BundleId(bundle));
  }
  pending.Expect({BundleId(0), BundleId(1), BundleId(2), BundleId(3)},
                 /*late=*/{BundleId(0), BundleId(1)});
  EXPECT_THAT(TakeAll(pending), ElementsAre(2, 3, 0, 1));
}

}  // namespace
}  // namespace gemini::client
