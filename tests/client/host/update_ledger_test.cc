// SPDX-License-Identifier: Apache-2.0
#include "client/host/update_ledger.h"

#include <cstddef>

#include "gemini/plan/spare_slots.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTensors = 2;
constexpr int64_t kBundles = 3;
constexpr SpaceShape kShape = {.num_bundles = kBundles, .host_slots = 30, .num_tensors = kTensors};

class UpdateLedgerTest : public ::testing::Test {
 protected:
  static Intent IntentFor(int64_t step, int64_t num_tensors = kTensors) {
    Intent intent;
    intent.step = step;
    intent.tensors.resize(num_tensors);
    return intent;
  }
  void Begin(int64_t step, absl::Span<const BundleId> late = {}) {
    ledger_.Begin(IntentFor(step), {BundleId(0), BundleId(1)}, late);
  }

  std::atomic<uint64_t> word_{0};
  alignas(8) std::byte intents_[2 * IntentSlotBytes(kTensors, kBundles)] = {};
  UpdateLedger ledger_{&word_, reinterpret_cast<IntentShm*>(intents_), kShape};
  const ChunkId param_ = ChunkOf(BundleId(0), ChunkKind::kParam);
  const ChunkId grad_ = ChunkOf(BundleId(0), ChunkKind::kGrad);
};

TEST_F(UpdateLedgerTest, BeginRecordsTheIntent) {
  Begin(5);
  const auto* const intents = reinterpret_cast<const IntentShm*>(intents_);
  EXPECT_EQ(TryReadIntent(word_, intents, kTensors, kBundles), IntentFor(5));
}

TEST_F(UpdateLedgerTest, RefusesAnIntentThatDoesNotFitOrWhileBundlesArePending) {
  EXPECT_OK(ledger_.CheckIntent("s", IntentFor(1)));
  EXPECT_THAT(ledger_.CheckIntent("s", IntentFor(1, kTensors + 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 tensors for space s")));
  EXPECT_THAT(ledger_.CheckIntent("s", IntentFor(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("for step 0")));
  Begin(1);
  EXPECT_THAT(ledger_.CheckIntent("s", IntentFor(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("2 bundles still await their commit at step 1")));
  ledger_.Fail(absl::DataLossError("gone"));
  EXPECT_THAT(ledger_.CheckIntent("s", IntentFor(2)), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(UpdateLedgerTest, OnlyACommitAtTheStepOfTheIntentEndsTheWait) {
  Begin(5);
  EXPECT_FALSE(ledger_.Committed(BundleId(0), 4));
  EXPECT_TRUE(ledger_.Delays(param_, ChunkAccess::kRead));
  EXPECT_TRUE(ledger_.Committed(BundleId(0), 5));
  EXPECT_FALSE(ledger_.Committed(BundleId(0), 5));
  EXPECT_FALSE(ledger_.Delays(param_, ChunkAccess::kRead));
  EXPECT_TRUE(ledger_.IsUnderWay());
  EXPECT_TRUE(ledger_.Committed(BundleId(1), 6));
  EXPECT_FALSE(ledger_.IsUnderWay());
}

TEST_F(UpdateLedgerTest, DelaysWhoeverReadsTheNewVersionOrWritesTheGradient) {
  EXPECT_FALSE(ledger_.Delays(param_, ChunkAccess::kRead));
  Begin(1);
  EXPECT_TRUE(ledger_.Delays(param_, ChunkAccess::kRead));
  EXPECT_TRUE(ledger_.Delays(grad_, ChunkAccess::kWrite));
  EXPECT_TRUE(ledger_.Delays(grad_, ChunkAccess::kWriteBack));
  EXPECT_FALSE(ledger_.Delays(grad_, ChunkAccess::kRead));  // The update only reads it, too.
  EXPECT_FALSE(ledger_.Delays(param_, ChunkAccess::kUpdate));
  EXPECT_FALSE(ledger_.Delays(ChunkOf(BundleId(2), ChunkKind::kParam), ChunkAccess::kRead));
}

TEST_F(UpdateLedgerTest, AWriteBackOfALateGradientIsNotDelayedUntilItHasArrived) {
  Begin(1, {BundleId(0)});
  EXPECT_TRUE(ledger_.IsLate(grad_, ChunkAccess::kWriteBack));
  EXPECT_FALSE(ledger_.IsLate(grad_, ChunkAccess::kWrite));
  EXPECT_FALSE(ledger_.Delays(grad_, ChunkAccess::kWriteBack));
  EXPECT_TRUE(ledger_.Delays(grad_, ChunkAccess::kWrite));
  ledger_.pending().GradientArrived(BundleId(0));
  EXPECT_FALSE(ledger_.IsLate(grad_, ChunkAccess::kWriteBack));
  EXPECT_TRUE(ledger_.Delays(grad_, ChunkAccess::kWriteBack));
}

TEST_F(UpdateLedgerTest, KeepsSlotsForTheUpdateAndForLateGradientsWhileItIsUnderWay) {
  const int64_t others = kShape.host_slots - UpdateSlots(kShape.format);
  EXPECT_TRUE(ledger_.MayHoldMore(kShape.host_slots));
  Begin(1, {BundleId(0)});
  EXPECT_TRUE(ledger_.MayHoldMore(others - kLateGradientSlots - 1));
  EXPECT_FALSE(ledger_.MayHoldMore(others - kLateGradientSlots));
  ledger_.EnterLateSlot(grad_);
  ledger_.pending().GradientArrived(BundleId(0));
  EXPECT_FALSE(ledger_.MayHoldMore(others - kLateGradientSlots));  // It is copied still.
  EXPECT_FALSE(ledger_.LeaveLateSlot(ChunkId()));
  EXPECT_FALSE(ledger_.LeaveLateSlot(param_));
  EXPECT_TRUE(ledger_.LeaveLateSlot(grad_));
  EXPECT_TRUE(ledger_.MayHoldMore(others - kLateGradientSlots));
  EXPECT_FALSE(ledger_.MayHoldMore(others));
  ledger_.Fail(absl::InternalError("no"));
  EXPECT_TRUE(ledger_.MayHoldMore(others));
}

TEST_F(UpdateLedgerTest, AfterAFailureNothingIsGivenOutUntilItIsTriedAgain) {
  Begin(1);
  EXPECT_EQ(ledger_.Take(), BundleId(0));
  ledger_.Fail(absl::DataLossError("first"));
  ledger_.Fail(absl::InternalError("second"));
  ledger_.SetReadFailed();
  ledger_.SetWriteFailed();
  EXPECT_THAT(ledger_.failure(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("first")));
  EXPECT_EQ(ledger_.Take(), std::nullopt);
  ledger_.Retry();
  EXPECT_OK(ledger_.failure());
  EXPECT_FALSE(ledger_.read_failed());
  EXPECT_FALSE(ledger_.write_failed());
  EXPECT_EQ(ledger_.Take(), BundleId(0));
}

TEST_F(UpdateLedgerTest, MovesAreTriedAgainWithTheNextUpdate) {
  ledger_.SetReadFailed();
  ledger_.SetWriteFailed();
  Begin(1);
  EXPECT_FALSE(ledger_.read_failed());
  EXPECT_FALSE(ledger_.write_failed());
}

}  // namespace
}  // namespace gemini::client
