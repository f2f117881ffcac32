// SPDX-License-Identifier: Apache-2.0
// Gradients that are on DEVICE still when their update begins: who waits for whom, and for which
// slots.
#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "client/device/copy_batch.h"
#include "client/host/chunk_store.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kGrad = ChunkKind::kGrad;
constexpr std::array kUpdated = {kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq};
// Beside what is kept for updates there is none.
constexpr int64_t kSmallestHost = UpdateSlots({}) + kLateGradientSlots;

class ChunkStoreLateGradientsTest : public SessionFixture {
 protected:
  // A space whose bundles are committed at 0, their parameters with tag 100 + bundle, moments 200
  // and 300 +. Their gradients are 400 +: in HOST or NVME, but for late ones, which are in
  // `device_` alone.
  void Open(int64_t num_bundles, int64_t host_slots, int64_t nvme_slots,
            const std::set<int64_t>& late = {}) {
    OpenSession(/*device_slots=*/8, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", num_bundles, host_slots, nvme_slots);
    ASSERT_NE(store_, nullptr);
    device_.resize(num_bundles * kTestChunkBytes);
    for (int64_t i = 0; i < num_bundles; ++i) {
      for (size_t k = 0; k < kUpdated.size(); ++k) {
        ASSERT_OK(CommitTag(*store_, BundleId(i), kUpdated[k], 0, 100 * (k + 1) + i));
      }
      FillChunk(OnDevice(i), 400 + i);
      if (!late.contains(i)) {
        ASSERT_OK(WriteInHost(i, 400 + i));
      }
    }
  }
  absl::Status WriteInHost(int64_t bundle, uint64_t tag) {
    auto grad = store_->AcquireToOverwrite(Grad(bundle));
    if (grad.ok()) FillChunk(grad->data(), tag);
    return grad.status();
  }
  // All of them.
  absl::Status Begin(int64_t step, const std::vector<BundleId>& late) {
    std::vector<BundleId> bundles;
    for (int64_t i = 0; i < store_->num_bundles(); ++i) bundles.push_back(BundleId(i));
    return Begin(step, bundles, {}, late);
  }
  absl::Status Begin(int64_t step, const std::vector<BundleId>& bundles,
                     const std::vector<DeviceVersion>& on_device,
                     const std::vector<BundleId>& late) {
    Intent intent;
    intent.step = step;
    return store_->updates().Begin(intent, bundles, on_device, late);
  }
  // What an updater acquires of a bundle: all slots that it may hold.
  struct Slots {
    std::vector<HostChunk> old;
    HostChunk grad;
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
  };
  absl::StatusOr<Slots> TakeSlots(int64_t bundle) {
    Slots slots;
    for (const ChunkKind kind : kUpdated) {
      auto old = store_->AcquireForUpdate(ChunkOf(BundleId(bundle), kind));
      if (!old.ok()) return old.status();
      slots.old.push_back(*std::move(old));
    }
    auto grad = store_->AcquireForUpdate(Grad(bundle));
    if (!grad.ok()) return grad.status();
    slots.grad = *std::move(grad);
    for (const ChunkKind kind : kUpdated) {
      auto spare = store_->AcquireSpareForUpdate();
      if (!spare.ok()) return spare.status();
      slots.fresh.emplace_back(kind, *std::move(spare));
    }
    return slots;
  }
  absl::Status Commit(Slots slots, int64_t bundle, int64_t step, uint64_t tag) {
    for (const auto& [kind, spare] : slots.fresh) FillChunk(spare.data(), tag);
    slots.old.clear();
    slots.grad = HostChunk();  // Who waits for the commit may free it.
    return store_->Commit(BundleId(bundle), step, absl::MakeSpan(slots.fresh));
  }
  // As an updater does it, once the gradient is there.
  absl::Status Update(int64_t bundle, int64_t step, uint64_t tag, uint64_t grad_tag) {
    auto slots = TakeSlots(bundle);
    if (!slots.ok()) return slots.status();
    EXPECT_TRUE(ChunkHolds(slots->grad.data(), grad_tag)) << bundle << " at " << step;
    return Commit(*std::move(slots), bundle, step, tag);
  }
  // As Residency does it with the chunks of a range.
  absl::Status WriteBack(const std::vector<int64_t>& bundles) {
    CopyBatch batch(copies_);
    for (const int64_t bundle : bundles) {
      if (auto event = batch.WriteBack(*store_, Grad(bundle), OnDevice(bundle), {}); !event.ok()) {
        return event.status();
      }
    }
    return absl::OkStatus();
  }
  absl::Status Bring(const std::vector<int64_t>& bundles) {
    if (absl::Status status = WriteBack(bundles); !status.ok()) return status;
    for (const int64_t bundle : bundles) store_->updates().GradientArrived(BundleId(bundle));
    return absl::OkStatus();
  }
  // Takes updates until `bundle` is given out before its turn, because somebody waits for it.
  // False: `done` was set instead.
  bool WaitedFor(int64_t bundle, const std::atomic<bool>& done) {
    while (!done) {
      store_->updates().Retry();
      if (store_->updates().Take() == BundleId(bundle)) return true;
      std::this_thread::yield();
    }
    return false;
  }
  void ExpectTag(ChunkId chunk, uint64_t tag) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(chunk));
    EXPECT_TRUE(ChunkHolds(host.data(), tag)) << chunk.value();
  }
  std::byte* OnDevice(int64_t bundle) { return device_.data() + bundle * kTestChunkBytes; }
  static ChunkId Param(int64_t bundle) { return ChunkOf(BundleId(bundle), kParam); }
  static ChunkId Grad(int64_t bundle) { return ChunkOf(BundleId(bundle), kGrad); }

  ChunkStore* store_ = nullptr;
  std::vector<std::byte> device_;  // Gradients by bundle.
  CopyEngineHost copies_;
};

TEST_F(ChunkStoreLateGradientsTest, ItIsWrittenBackWhileItsBundleIsPendingAndAllOtherWritersWait) {
  Open(3, 32, 0, {1});
  if (HasFatalFailure()) return;
  EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(1)));
  ASSERT_OK(Begin(1, {BundleId(1)}));
  EXPECT_TRUE(store_->updates().AwaitsGradient(BundleId(1)));
  EXPECT_TRUE(store_->AwaitsCommit(Param(1)));
  EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(0)));
  store_->updates().GradientArrived(BundleId(0));  // It was not late.
  std::atomic<int> written{0};
  const auto write = [&](auto acquire) {
    return std::thread([&, acquire] {
      acquire();
      EXPECT_EQ(store_->CommittedStep(BundleId(1)), 1);
      ++written;
    });
  };
  std::vector<std::thread> writers;
  writers.push_back(write([&] { EXPECT_OK(store_->AcquireToOverwrite(Grad(1))); }));
  writers.push_back(write([&] { EXPECT_OK(store_->AcquireUncommitted(Grad(1))); }));
  ASSERT_OK(WriteBack({1}));
  {
    // Its bytes may be read, as of any gradient.
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->Acquire(Grad(1)));
    EXPECT_TRUE(ChunkHolds(grad.data(), 401));
  }
  EXPECT_TRUE(store_->updates().AwaitsGradient(BundleId(1)));
  store_->updates().GradientArrived(BundleId(1));
  EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(1)));
  EXPECT_TRUE(store_->AwaitsCommit(Param(1)));
  EXPECT_EQ(written, 0);
  EXPECT_OK(Update(1, 1, 51, 401));
  for (std::thread& writer : writers) writer.join();
  for (const int64_t i : {0, 2}) ASSERT_OK(Update(i, 1, 50 + i, 400 + i));
  ASSERT_OK(store_->updates().AwaitCommits());
  // Not held any more, and as any other chunk.
  store_->Free(Grad(1));
  ASSERT_OK(WriteInHost(1, 9));
  ExpectTag(Grad(1), 9);
  ExpectTag(Param(1), 51);
}

TEST_F(ChunkStoreLateGradientsTest, WhatIsWrittenBackOnceItHasArrivedWaitsForTheCommit) {
  Open(3, 32, 0, {2});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(2)}));
  ASSERT_OK(Bring({2}));
  // Bundle 2's of the next step, and bundle 1's, which was never late.
  for (const int64_t i : {2, 1}) {
    FillChunk(OnDevice(i), 700 + i);
    std::atomic<bool> written{false};
    std::thread next_step([&] {
      EXPECT_OK(WriteBack({i}));
      written = true;
      EXPECT_EQ(store_->CommittedStep(BundleId(i)), 1);
    });
    EXPECT_TRUE(WaitedFor(i, written));
    EXPECT_OK(Update(i, 1, 50 + i, 400 + i));
    next_step.join();
    ExpectTag(Grad(i), 700 + i);
  }
}

TEST_F(ChunkStoreLateGradientsTest, FreeWaitsForTheCommitOfALateGradientToo) {
  Open(2, 32, 0, {1});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(1)}));
  std::atomic<bool> freed{false};
  std::thread free([&] {
    store_->Free(Grad(1));
    freed = true;
    EXPECT_EQ(store_->CommittedStep(BundleId(1)), 1);
  });
  EXPECT_TRUE(WaitedFor(1, freed));
  EXPECT_OK(Bring({1}));
  EXPECT_OK(Update(1, 1, 51, 401));
  free.join();
  EXPECT_FALSE(store_->HasPayload(Grad(1)));
}

TEST_F(ChunkStoreLateGradientsTest, LateOnesAreTakenLastUnlessTheyArriveOrSomebodyWaits) {
  Open(6, 64, 0, {0, 1, 2});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(2), BundleId(0), BundleId(1)}));
  EXPECT_EQ(store_->updates().Take(), BundleId(3));
  ASSERT_OK(Bring({1}));
  EXPECT_EQ(store_->updates().Take(), BundleId(1));
  std::atomic<bool> done{false};
  std::thread reader([&] {
    const auto param = store_->Acquire(Param(2));
    EXPECT_OK(param);
    if (param.ok()) {
      EXPECT_TRUE(ChunkHolds(param->data(), 52));
    }
    done = true;
  });
  EXPECT_TRUE(WaitedFor(2, done));
  EXPECT_TRUE(store_->updates().AwaitsGradient(BundleId(2)));  // The updater brings it itself.
  EXPECT_OK(Bring({2}));
  EXPECT_OK(Update(2, 1, 52, 402));
  reader.join();
  // WaitedFor gave the others out in vain.
  store_->updates().Retry();
  for (const int64_t next : {1, 3, 4, 5, 0}) {
    ASSERT_EQ(store_->updates().Take(), BundleId(next));
    EXPECT_EQ(store_->updates().AwaitsGradient(BundleId(next)), next == 0);
    if (next == 0) {
      EXPECT_OK(Bring({0}));
    }
    ASSERT_OK(Update(next, 1, 50 + next, 400 + next));
  }
  EXPECT_EQ(store_->updates().Take(), std::nullopt);
  EXPECT_OK(store_->updates().AwaitCommits());
}

TEST_F(ChunkStoreLateGradientsTest, WhatIsRefusedLeavesEverythingAsItWas) {
  Open(3, 32, 0, {2});
  if (HasFatalFailure()) return;
  const auto invalid = [](const char* why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
  };
  DeviceVersion on_device = {.bundle = BundleId(1), .slots = {}};
  for (const ChunkKind kind : UpdatedKinds(StateFormat())) {
    on_device.slots[kind] = SlotId(static_cast<int64_t>(kind));
  }
  EXPECT_THAT(Begin(1, {BundleId(0)}, {}, {BundleId(2)}), invalid("bundle 2"));
  EXPECT_THAT(Begin(1, {BundleId(0)}, {on_device}, {BundleId(1)}), invalid("bundle 1"));
  EXPECT_THAT(Begin(1, {BundleId(2), BundleId(0)}, {}, {BundleId(2), BundleId(2)}),
              invalid("bundle 2 of space store for a late gradient twice"));
  EXPECT_THAT(Begin(1, {BundleId(0)}, {}, {BundleId(3)}), invalid("bundle 3"));
  EXPECT_THAT(Begin(1, {BundleId(0)}, {}, {BundleId(-1)}), invalid("bundle -1"));
  EXPECT_THAT(Begin(1, {BundleId(2), BundleId(2)}, {}, {BundleId(2)}), invalid("bundle 2"));
  {
    const DeviceVersion late_too = {.bundle = BundleId(2), .slots = on_device.slots};
    EXPECT_THAT(Begin(1, {BundleId(2)}, {late_too}, {BundleId(2)}), invalid("bundle 2"));
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireUncommitted(Grad(2)));
    EXPECT_THAT(Begin(1, {BundleId(2)}, {}, {BundleId(2)}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gradient")));
  }
  EXPECT_EQ(store_->memory().header()->intent, 0);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(i)));
    EXPECT_FALSE(store_->AwaitsCommit(Param(i)));
    ExpectTag(Param(i), 100 + i);
  }
  EXPECT_EQ(store_->updates().Take(), std::nullopt);
  ASSERT_OK(Begin(1, {BundleId(2), BundleId(0)}, {on_device}, {BundleId(2)}));
  EXPECT_THAT(Begin(2, {}, {}, {BundleId(2)}), invalid("bundle 2"));
  EXPECT_TRUE(store_->updates().AwaitsGradient(BundleId(2)));
}

TEST_F(ChunkStoreLateGradientsTest, AfterAFailureItStillAwaitsItsGradientWhichMayBeWrittenBack) {
  Open(3, 32, 0, {0, 1});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(0), BundleId(1)}));
  ASSERT_EQ(store_->updates().Take(), BundleId(2));
  ASSERT_EQ(store_->updates().Take(), BundleId(0));
  store_->updates().Fail(absl::UnavailableError("disk"));
  EXPECT_THAT(store_->AcquireToOverwrite(Grad(0)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store_->AcquireForWriteBack(Grad(2)), StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_OK(Bring({0}));
  EXPECT_THAT(store_->AcquireForWriteBack(Grad(0)), StatusIs(absl::StatusCode::kUnavailable));
  store_->updates().Retry();
  EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(0)));
  for (const int64_t next : {0, 2, 1}) {
    ASSERT_EQ(store_->updates().Take(), BundleId(next));
    EXPECT_EQ(store_->updates().AwaitsGradient(BundleId(next)), next == 1);
    if (next == 1) {
      ASSERT_OK(Bring({1}));
    }
    ASSERT_OK(Update(next, 1, 50 + next, 400 + next));
  }
  EXPECT_OK(store_->updates().AwaitCommits());
}

TEST_F(ChunkStoreLateGradientsTest, WithoutItsGradientABundleMayBeCommittedAllTheSame) {
  Open(3, kSmallestHost, 20, {0, 1});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(0), BundleId(1)}));
  EXPECT_THAT(store_->AcquireForUpdate(Grad(0)), StatusIs(absl::StatusCode::kNotFound));
  // As for a step that is skipped.
  ASSERT_OK(store_->Commit(BundleId(0), 1, {}));
  EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(0)));
  {
    // A write-back that is under way still keeps its slot from others, and the next step from
    // beginning.
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireForWriteBack(Grad(1)));
    EXPECT_TRUE(grad.for_update());
    ASSERT_OK(store_->Commit(BundleId(1), 1, {}));
    std::atomic<bool> held{false};
    std::thread other([&] {
      EXPECT_OK(store_->AcquireSpare());
      held = true;
    });
    Look("store");  // Takes its time.
    EXPECT_FALSE(held);
    EXPECT_OK(Update(2, 1, 52, 402));
    other.join();
    ASSERT_OK(store_->updates().AwaitCommits());
    EXPECT_THAT(Begin(2, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gradient")));
  }
  ASSERT_OK(Bring({0}));  // Nobody awaits it any more.
  ASSERT_OK(Begin(2, {BundleId(1)}));
  EXPECT_FALSE(store_->updates().AwaitsGradient(BundleId(0)));
  EXPECT_TRUE(store_->updates().AwaitsGradient(BundleId(1)));
}

TEST_F(ChunkStoreLateGradientsTest, AnUpdateIsRefusedWhenOthersHoldTheSlotOfLateGradients) {
  Open(2, kSmallestHost, 20, {1});
  if (HasFatalFailure()) return;
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk held, store_->AcquireSpare());
    EXPECT_THAT(Begin(1, {BundleId(1)}),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("needs 8 HOST slots")));
    EXPECT_EQ(store_->updates().Take(), std::nullopt);
    ASSERT_OK(Begin(1, {BundleId(0)}, {}, {}));
  }
  ASSERT_OK(Update(0, 1, 50, 400));
  ASSERT_OK(Begin(2, {BundleId(1)}));
  ASSERT_OK(Update(0, 2, 60, 400));
  ASSERT_OK(Bring({1}));
  ASSERT_OK(Update(1, 2, 61, 401));
}

TEST_F(ChunkStoreLateGradientsTest, AWriteBackThatFindsNoRoomKeepsNothing) {
  Open(2, kSmallestHost, 0, {0, 1});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(0), BundleId(1)}));
  {
    // All that its parameters and moments leave, without NVME.
    ASSERT_OK_AND_ASSIGN(const HostChunk first, store_->AcquireSpareForUpdate());
    ASSERT_OK_AND_ASSIGN(const HostChunk second, store_->AcquireSpareForUpdate());
    EXPECT_THAT(WriteBack({0}), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  ASSERT_OK(WriteBack({0, 1}));
  ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireForUpdate(Grad(0)));
  EXPECT_TRUE(ChunkHolds(grad.data(), 400));
}

// The updater holds all that it may, and others all that is left, in wait for the commits of
// bundles whose gradients are late: a range of these is written back all the same.
TEST_F(ChunkStoreLateGradientsTest, TheyFindASlotHoweverManyAreHeldByWhoWaitsForThem) {
  for (const int64_t of_others : {0, 1, 2}) {
    store_ = nullptr;
    session_.reset();
    Open(6, kSmallestHost + of_others, 24, {0, 1, 2, 3});
    if (HasFatalFailure()) return;
    ASSERT_OK(Begin(1, {BundleId(0), BundleId(1), BundleId(2), BundleId(3)}));
    std::atomic<int64_t> holding{0};
    std::vector<std::thread> readers;
    for (int64_t i = 0; i < of_others; ++i) {
      readers.emplace_back([&, i] {
        auto held = store_->Acquire(Grad(4 + i));
        EXPECT_OK(held);
        ++holding;
        EXPECT_OK(store_->updates().AwaitCommit(BundleId(i)));
      });
    }
    while (holding < of_others) std::this_thread::yield();
    absl::StatusOr<Slots> of_updater = TakeSlots(5);
    ASSERT_OK(of_updater);
    ASSERT_OK(Bring({0, 1, 2, 3}));
    ASSERT_OK(Commit(*std::move(of_updater), 5, 1, 55));
    while (const std::optional<BundleId> bundle = store_->updates().Take()) {
      const int64_t i = bundle->value();
      if (i != 5) {
        ASSERT_OK(Update(i, 1, 50 + i, 400 + i));
      }
    }
    for (std::thread& reader : readers) reader.join();
    ASSERT_OK(store_->updates().AwaitCommits());
    for (int64_t i = 0; i < 6; ++i) ExpectTag(Param(i), 50 + i);
  }
}

// Two that write back at one time take turns with the slot, and who holds it is not waited for in
// vain.
TEST_F(ChunkStoreLateGradientsTest, WhoWantsTheSlotOfAnotherWaitsUntilThatIsCopied) {
  Open(3, kSmallestHost, 20, {0, 1});
  if (HasFatalFailure()) return;
  ASSERT_OK(Begin(1, {BundleId(0), BundleId(1)}));
  std::thread other;
  std::atomic<bool> let_go{false};
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireForWriteBack(Grad(0)));
    EXPECT_TRUE(grad.for_update());
    other = std::thread([&] {
      EXPECT_OK(Bring({1}));
      EXPECT_TRUE(let_go);
    });
    ASSERT_OK(Update(2, 1, 52, 402));  // Beside it.
    EXPECT_EQ(Look("store")[Grad(1).value()].state, ChunkState::kFree);
    FillChunk(grad.data(), 400);
    let_go = true;
  }
  other.join();
  store_->updates().GradientArrived(BundleId(0));
  for (const int64_t i : {0, 1}) ASSERT_OK(Update(i, 1, 50 + i, 400 + i));
  // Nothing is kept any more.
  std::vector<HostChunk> held;
  for (int64_t i = 0; i < kSmallestHost; ++i) {
    ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
    held.push_back(std::move(spare));
  }
}

// What whoever reads a dead trainer's words finds at each moment: until the bytes are whole in
// HOST, the gradient is the one on DEVICE; until the commit, the version before is valid.
TEST_F(ChunkStoreLateGradientsTest, AtEachMomentOneWholeGradientIsNamed) {
  Open(2, 32, 0, {0, 1});
  if (HasFatalFailure()) return;
  Residency& residency = session_->residency();
  const RangeId range = residency.AddRange(*store_, BundleId(0), 2, kGrad);
  for (int64_t step = 1; step <= 3; ++step) {
    std::byte* address = nullptr;
    for (int64_t i = 0; i < 2; ++i) ASSERT_OK(WriteInHost(i, 1));  // Older bytes than on DEVICE.
    ASSERT_OK(residency.Pin({&range, 1}, {&address, 1}));
    for (int64_t i = 0; i < 2; ++i) FillChunk(address + i * kTestChunkBytes, 10 * step + i);
    residency.Unpin(range, /*dirty=*/true);
    const auto expect = [&](Tier tier, bool dirty, int64_t committed) {
      const std::vector<SeenChunk> seen = Look("store");
      for (int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(seen[Grad(i).value()].tier, tier);
        EXPECT_EQ(seen[Grad(i).value()].dirty, dirty);
        EXPECT_EQ(seen[Param(i).value()].commit_step, committed);
      }
    };
    expect(Tier::kDevice, true, step - 1);
    ASSERT_OK(Begin(step, {BundleId(0), BundleId(1)}));
    expect(Tier::kDevice, true, step - 1);
    {
      // In the middle of the write-back, which then begins anew.
      ASSERT_OK_AND_ASSIGN(const HostChunk half, store_->AcquireForWriteBack(Grad(0)));
      FillChunk(half.data(), 666);
      expect(Tier::kDevice, true, step - 1);
    }
    if (step == 2) {
      ASSERT_OK(residency.WriteBack(range));
    } else {
      MutexLock lock(residency.tier().mutex);
      ASSERT_OK(residency.tier().Evict(range));
    }
    expect(step == 2 ? Tier::kDevice : Tier::kHost, false, step - 1);
    for (int64_t i = 0; i < 2; ++i) {
      ExpectTag(Grad(i), 10 * step + i);
      store_->updates().GradientArrived(BundleId(i));
    }
    expect(step == 2 ? Tier::kDevice : Tier::kHost, false, step - 1);
    for (int64_t i = 0; i < 2; ++i) ASSERT_OK(Update(i, step, 10 * step, 10 * step + i));
    expect(step == 2 ? Tier::kDevice : Tier::kHost, false, step);
    ASSERT_OK(residency.Drop(range));
  }
}

// Property: whoever brings the late gradients, and whoever waits with slots held meanwhile, each
// update is made from the gradient of its step, readers see whole versions, and all comes to its
// end.
TEST_F(ChunkStoreLateGradientsTest, AllComesToItsEndInTheSmallestHost) {
  constexpr int64_t kBundles = 6;
  constexpr int64_t kSteps = 60;
  for (const int64_t of_others : {0, 1, 3}) {
    store_ = nullptr;
    session_.reset();
    Open(kBundles, kSmallestHost + of_others, 40);
    if (HasFatalFailure()) return;
    // Ranges of two gradients, which one thread at a time brings, as in Residency.
    std::array<std::mutex, kBundles / 2> range_locks;
    std::array<bool, kBundles / 2> dirty = {};
    const auto bring = [&](int64_t range) {
      const std::lock_guard lock(range_locks[range]);
      if (!std::exchange(dirty[range], false)) return;
      EXPECT_OK(Bring({2 * range, 2 * range + 1}));
    };
    std::atomic<int64_t> started{0};
    std::atomic<bool> beginning{false};  // Readers hold nothing for long.
    std::vector<std::thread> readers;
    for (int64_t t = 0; t < 2; ++t) {
      readers.emplace_back([&, t] {
        for (int64_t i = t; started < kSteps; i = (i + 1) % kBundles) {
          if (beginning) {
            std::this_thread::yield();
            continue;
          }
          const int64_t at_least = started;
          // Waits for another one's commit with it, which may find no slot when none is kept for
          // updates.
          const auto other = store_->Acquire(Grad((i + 3) % kBundles));
          const auto param = store_->Acquire(Param(i));
          if (!param.ok()) {
            EXPECT_THAT(param, StatusIs(absl::StatusCode::kResourceExhausted));
            continue;
          }
          const uint64_t tag = *reinterpret_cast<const uint64_t*>(param->data()) / 1'000'003;
          EXPECT_TRUE(ChunkHolds(param->data(), tag));
          if (at_least > 0) {
            EXPECT_GE(tag, 1'000 * static_cast<uint64_t>(at_least) + i);
          }
        }
      });
    }
    for (int64_t step = 1; step <= kSteps; ++step) {
      std::vector<BundleId> late;
      for (int64_t i = 0; i < kBundles; ++i) {
        if ((i / 2 + step) % 3 == 0) {
          ASSERT_OK(WriteInHost(i, 1'000 * step + i));
        } else {
          FillChunk(OnDevice(i), 1'000 * step + i);
          late.push_back(BundleId(i));
          const std::lock_guard lock(range_locks[i / 2]);
          dirty[i / 2] = true;
        }
      }
      absl::Status begun = absl::ResourceExhaustedError("not yet");
      beginning = true;  // A reader may still hold what is to be kept, or a gradient.
      while (absl::IsResourceExhausted(begun) || absl::IsFailedPrecondition(begun)) {
        begun = Begin(step, late);
      }
      ASSERT_OK(begun);
      started = step;
      beginning = false;
      std::thread plan([&] {
        for (int64_t range = 0; range < kBundles / 2; ++range) bring(range);
      });
      while (const std::optional<BundleId> bundle = store_->updates().Take()) {
        const int64_t i = bundle->value();
        if (store_->updates().AwaitsGradient(*bundle)) bring(i / 2);
        ASSERT_FALSE(store_->updates().AwaitsGradient(*bundle));
        ASSERT_OK(Update(i, step, 1'000 * step + i, 1'000 * step + i));
      }
      plan.join();
      ASSERT_OK(store_->updates().AwaitCommits());
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_GT(store_->stored_bytes().nvme_written_bytes, 0);
  }
}

}  // namespace
}  // namespace gemini::client
