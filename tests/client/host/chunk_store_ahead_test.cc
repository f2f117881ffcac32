// SPDX-License-Identifier: Apache-2.0
// What ChunkStore reads ahead, and what it gives up for that, by what a plan foresees.
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/host/chunk_mover.h"
#include "client/host/chunk_store.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

constexpr int64_t kBundles = 30;
constexpr int64_t kRoomAhead = 8;
constexpr absl::Duration kLong = absl::Seconds(60);  // Only a machine that swaps gets there.

class ChunkStoreAheadTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/4, kFreeSlots + kRoomAhead, 2 * kBundles);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", kBundles, kFreeSlots + kRoomAhead, 2 * kBundles);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < kBundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, 0, i));
    }
    for (int64_t i = 0; i < kBundles; ++i) {
      plan_.host_uses.push_back({.chunk = Param(i), .at_ns = 10 * i});
    }
    plan_.prediction.round_ns = 10 * kBundles;
    plan_.host_read_ns = 2;
  }
  void Foresee() {
    store_->Foresee(policies::HostForesight(plan_.host_uses, plan_.prediction.round_ns,
                                            plan_.host_read_ns, 0, kBundles * kNumChunkKinds));
  }
  static ChunkId Param(int64_t bundle) { return ChunkOf(BundleId(bundle), ChunkKind::kParam); }
  bool IsInHost(ChunkId chunk) { return Look("store").at(chunk.value()).tier == Tier::kHost; }
  void AwaitInHost(ChunkId chunk) {
    const absl::Time deadline = absl::Now() + kLong;
    while (!IsInHost(chunk)) {
      ASSERT_LT(absl::Now(), deadline) << "chunk " << chunk.value() << " does not come";
      std::this_thread::yield();
    }
  }
  void Use(int64_t bundle, uint64_t tag) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(Param(bundle)));
    EXPECT_TRUE(ChunkHolds(host.data(), tag)) << "bundle " << bundle;
  }
  int64_t chunks_read() const { return store_->stored_bytes().nvme_read_bytes / kTestChunkBytes; }

  ChunkStore* store_ = nullptr;
  Plan plan_;
};

TEST_F(ChunkStoreAheadTest, BringsWhatIsUsedNextBeforeItIsAskedFor) {
  Foresee();
  ChunkMover ahead(*store_);
  ahead.StartForPlan();
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < kBundles; ++i) {
      AwaitInHost(Param(i));
      Use(i, i);
    }
  }
}

TEST_F(ChunkStoreAheadTest, MovesHardlyMoreThanTheBestReplacement) {
  Foresee();
  {
    ChunkMover ahead(*store_);
    ahead.StartForPlan();
    for (int64_t i = 0; i < kBundles; ++i) {
      AwaitInHost(Param(i));
      Use(i, i);
    }
    const int64_t before = chunks_read();
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds; ++round) {
      for (int64_t i = 0; i < kBundles; ++i) {
        AwaitInHost(Param(i));
        Use(i, i);
      }
    }
    // Belady keeps all but one of the slots' chunks from round to round; here those that were read
    // ahead and are under way are not kept either.
    EXPECT_LE(chunks_read() - before, kRounds * (kBundles - kRoomAhead + 4));
    EXPECT_GE(chunks_read() - before, kRounds * (kBundles - kFreeSlots - kRoomAhead));
  }
  // By least recent use each is read each time.
  store_->Foresee({});
  for (int64_t i = 0; i < kBundles; ++i) Use(i, i);
  const int64_t before = chunks_read();
  for (int64_t i = 0; i < kBundles; ++i) Use(i, i);
  EXPECT_EQ(chunks_read() - before, kBundles);
}

TEST_F(ChunkStoreAheadTest, DoesNotReadWhatIsOverwritten) {
  for (int64_t i = 0; i < kBundles; i += 2) plan_.host_uses[i].overwrites = true;
  plan_.host_read_ns = 10;  // Due two uses ahead.
  Foresee();
  const int64_t before = chunks_read();
  ChunkMover ahead(*store_);
  ahead.StartForPlan();
  for (int64_t i = 1; i < kBundles; i += 2) {
    AwaitInHost(Param(i));
    Use(i, i);
  }
  EXPECT_LE(chunks_read() - before, kBundles / 2 + kRoomAhead);
}

TEST_F(ChunkStoreAheadTest, LeavesRoomForWhoWrites) {
  Foresee();
  ChunkMover ahead(*store_);
  ahead.StartForPlan();
  AwaitInHost(Param(0));
  // None of these waits for a spill, or for read-ahead to give something up.
  std::vector<HostChunk> spares;
  const int64_t written = store_->stored_bytes().nvme_written_bytes;
  for (int64_t i = 0; i < kFreeSlots; ++i) {
    ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
    spares.push_back(std::move(spare));
  }
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, written);
}

TEST_F(ChunkStoreAheadTest, ChangedChunksComeBackAsTheyWereLeft) {
  Foresee();
  ChunkMover ahead(*store_);
  ahead.StartForPlan();
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t i = 0; i < kBundles; ++i) {
      Use(i, 1000 * (step - 1) + i);
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, step, 1000 * step + i));
    }
  }
}

TEST_F(ChunkStoreAheadTest, EndsWhenTheServerIsGone) {
  ASSERT_FALSE(IsInHost(Param(0)));
  server_.reset();
  Foresee();
  ChunkMover ahead(*store_);
  ahead.StartForPlan();
  EXPECT_THAT(store_->Acquire(Param(0)), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace gemini::client
