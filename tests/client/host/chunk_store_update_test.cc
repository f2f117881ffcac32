// SPDX-License-Identifier: Apache-2.0
// What waits for an update, what the updater is sure of, and what the segment says at every moment.
#include <atomic>
#include <set>
#include <thread>

#include "client/host/chunk_store.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kGrad = ChunkKind::kGrad;

class ChunkStoreUpdateTest : public SessionFixture {
 protected:
  // A space whose bundles have a parameter, tag 100 + bundle, committed at 0 and a gradient, 200 +.
  void Open(int64_t num_bundles, int64_t host_slots, int64_t nvme_slots) {
    OpenSession(/*device_slots=*/8, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", num_bundles, host_slots, nvme_slots);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < num_bundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, 100 + i));
      ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireToOverwrite(Grad(i)));
      FillChunk(grad.data(), 200 + i);
    }
  }
  std::vector<BundleId> AllBundles() const {
    std::vector<BundleId> bundles;
    for (int64_t i = 0; i < store_->num_bundles(); ++i) bundles.push_back(BundleId(i));
    return bundles;
  }
  static Intent IntentFor(int64_t step) {
    Intent intent;
    intent.step = step;
    return intent;
  }
  absl::Status Begin(int64_t step) {
    return store_->updates().Begin(IntentFor(step), AllBundles());
  }
  // As an updater does it: everything out of place, seven slots at once.
  absl::Status Update(BundleId bundle, int64_t step, uint64_t tag) {
    auto param = store_->AcquireForUpdate(ChunkOf(bundle, kParam));
    if (!param.ok()) return param.status();
    auto grad = store_->AcquireForUpdate(ChunkOf(bundle, kGrad));
    if (!grad.ok()) return grad.status();
    std::vector<HostChunk> old;
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    for (const ChunkKind kind : {kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
      if (kind != kParam && store_->HasPayload(ChunkOf(bundle, kind))) {
        auto moment = store_->AcquireForUpdate(ChunkOf(bundle, kind));
        if (!moment.ok()) return moment.status();
        old.push_back(*std::move(moment));
      }
      auto spare = store_->AcquireSpareForUpdate();
      if (!spare.ok()) return spare.status();
      FillChunk(spare->data(), tag);
      fresh.emplace_back(kind, *std::move(spare));
    }
    // Once nothing is pending, others may need every slot.
    old.clear();
    *param = {};
    *grad = {};
    return store_->Commit(bundle, step, absl::MakeSpan(fresh));
  }
  // Takes updates until `bundle` is given out before its turn, because somebody waits for it.
  // False: `done` was set instead.
  bool WaitedFor(BundleId bundle, const std::atomic<bool>& done) {
    while (!done) {
      store_->updates().Retry();
      if (store_->updates().Take() == bundle) return true;
      std::this_thread::yield();
    }
    return false;
  }
  static ChunkId Param(int64_t bundle) { return ChunkOf(BundleId(bundle), kParam); }
  static ChunkId Grad(int64_t bundle) { return ChunkOf(BundleId(bundle), kGrad); }

  ChunkStore* store_ = nullptr;
};

TEST_F(ChunkStoreUpdateTest, PinWaitsForVersion) {
  Open(3, 32, 0);
  if (HasFatalFailure()) return;
  Residency& residency = session_->residency();
  const RangeId range = residency.AddRange(*store_, BundleId(2), 1, kParam);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(residency.Drop(range));
    ASSERT_OK(Begin(step));
    EXPECT_TRUE(store_->AwaitsCommit(Param(2)));
    EXPECT_FALSE(store_->AwaitsCommit(Grad(2)));
    std::atomic<bool> pinned{false};
    std::thread operator_thread([&, step] {
      std::byte* address = nullptr;
      EXPECT_OK(residency.Pin({&range, 1}, {&address, 1}));
      pinned = true;
      EXPECT_EQ(store_->CommittedStep(BundleId(2)), step);
      EXPECT_TRUE(ChunkHolds(address, 1'000 * step + 2));
      residency.Unpin(range, /*dirty=*/false);
    });
    // Bundle 2 is the last in order, and is given out first for the pin.
    EXPECT_TRUE(WaitedFor(BundleId(2), pinned));
    EXPECT_FALSE(pinned);
    EXPECT_OK(Update(BundleId(2), step, 1'000 * step + 2));
    operator_thread.join();
    // The others' turn has not come, and nobody waited for them.
    EXPECT_EQ(store_->CommittedStep(BundleId(0)), step - 1);
    for (int64_t i = 0; i < 2; ++i) ASSERT_OK(Update(BundleId(i), step, 1'000 * step + i));
    ASSERT_OK(store_->updates().AwaitCommits());
  }
}

TEST_F(ChunkStoreUpdateTest, GradHeldUntilCommit) {
  Open(2, 32, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1));
  {
    // Reading it is allowed meanwhile.
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->Acquire(Grad(1)));
    EXPECT_TRUE(ChunkHolds(grad.data(), 201));
  }
  std::atomic<bool> written{false};
  std::thread backward([&] {
    auto grad = store_->AcquireToOverwrite(Grad(1));
    EXPECT_OK(grad);
    written = true;
    if (grad.ok()) FillChunk(grad->data(), 999);
    EXPECT_EQ(store_->CommittedStep(BundleId(1)), 1);
  });
  EXPECT_TRUE(WaitedFor(BundleId(1), written));
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireForUpdate(Grad(1)));
    EXPECT_TRUE(ChunkHolds(grad.data(), 201));
  }
  EXPECT_OK(Update(BundleId(1), 1, 1'001));
  backward.join();
  ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->Acquire(Grad(1)));
  EXPECT_TRUE(ChunkHolds(grad.data(), 999));
  ASSERT_OK(Update(BundleId(0), 1, 1'000));
}

TEST_F(ChunkStoreUpdateTest, OneIntent) {
  Open(2, 32, 0);
  if (HasFatalFailure()) return;
  {
    // A gradient that somebody may still write is not complete.
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireUncommitted(Grad(1)));
    EXPECT_THAT(Begin(1), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gradient")));
  }
  ASSERT_OK(Begin(1));
  EXPECT_THAT(Begin(2), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("2 bundles")));
  ASSERT_OK(Update(BundleId(0), 1, 1));
  EXPECT_THAT(Begin(2), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("1 bundles")));
  EXPECT_THAT(Begin(1), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(Update(BundleId(1), 1, 2));
  // The same step again would do it twice.
  EXPECT_THAT(Begin(1), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("at step 1")));
  ASSERT_OK(Begin(2));
  for (int64_t i = 0; i < 2; ++i) ASSERT_OK(Update(BundleId(i), 2, 3));
  Intent with_tensors = IntentFor(3);
  with_tensors.tensors.resize(1);
  EXPECT_THAT(store_->updates().Begin(with_tensors, AllBundles()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 tensors")));
  EXPECT_OK(Begin(3));
  for (int64_t i = 0; i < 2; ++i) ASSERT_OK(Update(BundleId(i), 3, 3));
}

TEST_F(ChunkStoreUpdateTest, TheUpdaterNeverWantsForASlotHoweverManyOthersHold) {
  // Beside the updater's seven there is one slot for all others.
  Open(4, UpdateSlots({}) + 1, 20);
  if (HasFatalFailure()) return;
  for (int64_t step = 1; step <= 5; ++step) {
    ASSERT_OK(Begin(step));
    std::vector<std::thread> readers;
    for (int64_t i = 0; i < 4; ++i) {
      readers.emplace_back([this, i] {
        // Holds one slot, and waits with it for the commit of another bundle.
        const auto grad = store_->Acquire(Grad(i));
        EXPECT_OK(grad);
        const auto param = store_->Acquire(Param(3 - i));
        // Four hold two each: more than there are, once nothing is pending.
        if (!absl::IsResourceExhausted(param.status())) {
          EXPECT_OK(param);
        }
      });
    }
    while (const std::optional<BundleId> bundle = store_->updates().Take()) {
      EXPECT_OK(Update(*bundle, step, 10 * step));
    }
    for (std::thread& reader : readers) reader.join();
    ASSERT_OK(store_->updates().AwaitCommits());
  }
}

TEST_F(ChunkStoreUpdateTest, AnUpdateIsRefusedWhenOthersHoldItsSlots) {
  Open(4, UpdateSlots({}) + 1, 20);
  if (HasFatalFailure()) return;
  std::vector<HostChunk> held;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
    held.push_back(std::move(spare));
  }
  EXPECT_THAT(Begin(1), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2 of its 8")));
  EXPECT_FALSE(store_->AwaitsCommit(Param(0)));
  held.pop_back();
  EXPECT_OK(Begin(1));
  held.clear();
  for (int64_t i = 0; i < 4; ++i) ASSERT_OK(Update(BundleId(i), 1, 1));
}

TEST_F(ChunkStoreUpdateTest, AFailedUpdateIsToldToWhoeverWaitsAndCanBeDoneAgain) {
  Open(2, 32, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1));
  ASSERT_OK(Update(BundleId(0), 1, 50));
  std::atomic<bool> returned{false};
  std::thread waiter([&] {
    EXPECT_THAT(store_->Acquire(Param(1)), StatusIs(absl::StatusCode::kUnavailable));
    returned = true;
  });
  EXPECT_TRUE(WaitedFor(BundleId(1), returned));
  store_->updates().Fail(absl::UnavailableError("disk"));
  waiter.join();
  EXPECT_EQ(store_->updates().Take(), std::nullopt);
  EXPECT_THAT(store_->AcquireUncommitted(Grad(1)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store_->updates().AwaitCommits(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store_->updates().AwaitCommit(BundleId(1)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Begin(2), StatusIs(absl::StatusCode::kUnavailable));
  store_->Free(Grad(1));
  EXPECT_TRUE(store_->HasPayload(Grad(1)));
  EXPECT_OK(store_->Acquire(Param(0)));  // Its update was committed.
  store_->updates().Retry();
  EXPECT_EQ(store_->updates().Take(), BundleId(1));
  ASSERT_OK(Update(BundleId(1), 1, 51));
  EXPECT_OK(store_->updates().AwaitCommits());
  ASSERT_OK_AND_ASSIGN(const HostChunk param, store_->Acquire(Param(1)));
  EXPECT_TRUE(ChunkHolds(param.data(), 51));
}

TEST_F(ChunkStoreUpdateTest, AGradientIsPeekedAtOnlyWhileNobodyHoldsIt) {
  Open(1, 32, 0);
  if (HasFatalFailure()) return;
  int looks = 0;
  const auto look = [&](const std::byte* bytes) {
    ++looks;
    EXPECT_TRUE(ChunkHolds(bytes, 200));
  };
  const std::optional<int64_t> first = store_->PeekGradient(BundleId(0), look);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(store_->WriteCounts(Grad(0)).all, *first);
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk writer, store_->AcquireUncommitted(Grad(0)));
    EXPECT_EQ(store_->PeekGradient(BundleId(0), look), std::nullopt);
  }
  EXPECT_NE(store_->WriteCounts(Grad(0)).all, *first);
  EXPECT_EQ(looks, 1);
  store_->Free(Grad(0));
  EXPECT_EQ(store_->PeekGradient(BundleId(0), look), std::nullopt);
}

// Property: with updates, spills, readers and writers of gradients at once, every version is whole.
TEST_F(ChunkStoreUpdateTest, ThreadsOfAllKindsSeeWholeVersionsUnderPressure) {
  constexpr int64_t kBundles = 6;
  constexpr int64_t kSteps = 60;
  Open(kBundles, UpdateSlots({}) + 4, 40);
  if (HasFatalFailure()) return;
  std::atomic<int64_t> started{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; started < kSteps; i = (i + 1) % kBundles) {
        const int64_t at_least = started;
        const auto param = store_->Acquire(Param(i));
        ASSERT_OK(param);
        const uint64_t word = *reinterpret_cast<const uint64_t*>(param->data());
        const uint64_t tag = word / 1'000'003;
        ASSERT_TRUE(ChunkHolds(param->data(), tag));
        if (at_least > 0) {
          ASSERT_GE(tag, 1'000 * static_cast<uint64_t>(at_least) + i);
        }
      }
    });
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    ASSERT_OK(Begin(step));
    started = step;
    while (const std::optional<BundleId> bundle = store_->updates().Take()) {
      ASSERT_OK(Update(*bundle, step, 1'000 * step + bundle->value()));
    }
    for (int64_t i = 0; i < kBundles; ++i) {
      ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireToOverwrite(Grad(i)));
      FillChunk(grad.data(), step);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store_->stored_bytes().nvme_written_bytes, 0);
}

}  // namespace
}  // namespace gemini::client
