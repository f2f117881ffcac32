// SPDX-License-Identifier: Apache-2.0
#include "client/host/chunk_store.h"

#include <atomic>
#include <barrier>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kGrad = ChunkKind::kGrad;

class ChunkStoreTest : public SessionFixture {
 protected:
  void Open(int64_t num_bundles, int64_t host_slots, int64_t nvme_slots) {
    OpenSession(/*device_slots=*/4, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", num_bundles, host_slots, nvme_slots);
    ASSERT_NE(store_, nullptr);
  }
  void ExpectTag(ChunkId chunk, uint64_t tag) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(chunk));
    EXPECT_TRUE(ChunkHolds(host.data(), tag)) << "chunk " << chunk.value();
  }
  // No two records name the same slot: none was given away while a record named it.
  void ExpectPlacesDiffer() {
    std::set<std::pair<Tier, SlotId>> places;
    for (int64_t i = 0; i < store_->num_bundles() * kNumChunkKinds; ++i) {
      const std::optional<ChunkSlot> place = store_->CommittedPlace(ChunkId(i));
      EXPECT_EQ(place.has_value(), store_->IsCommitted(ChunkId(i)));
      if (place) {
        EXPECT_TRUE(places.emplace(place->tier, place->slot).second) << "chunk " << i;
      }
    }
  }
  static ChunkId Param(int64_t bundle) { return ChunkOf(BundleId(bundle), kParam); }
  static ChunkId Grad(int64_t bundle) { return ChunkOf(BundleId(bundle), kGrad); }

  ChunkStore* store_ = nullptr;
};

TEST_F(ChunkStoreTest, AFreeChunkIsNotFound) {
  Open(2, 4, 0);
  if (HasFatalFailure()) return;
  EXPECT_THAT(store_->Acquire(Param(1)), StatusIs(absl::StatusCode::kNotFound, HasSubstr("param")));
  EXPECT_FALSE(store_->HasPayload(Param(1)));
  EXPECT_EQ(store_->CommittedStep(BundleId(1)), -1);
  EXPECT_THAT(store_->Acquire(ChunkId(2 * kNumChunkKinds)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ChunkStoreTest, AGradientIsZeroWhenFirstAcquiredEvenInAUsedSlot) {
  Open(2, 2, 0);
  if (HasFatalFailure()) return;
  for (int round = 0; round < 3; ++round) {
    {
      ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireUncommitted(Grad(0)));
      EXPECT_TRUE(ChunkIsZero(grad.data()));
      FillChunk(grad.data(), 5);
    }
    ExpectTag(Grad(0), 5);
    store_->Free(Grad(0));
    EXPECT_FALSE(store_->HasPayload(Grad(0)));
  }
  EXPECT_EQ(store_->stored_bytes().host_bytes, 0);
}

TEST_F(ChunkStoreTest, ACommittedChunkIsNeverHandedOutForWriting) {
  Open(2, 4, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 0, 1));
  EXPECT_THAT(store_->AcquireUncommitted(Param(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store_->AcquireToOverwrite(Param(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ChunkStoreTest, BundleCommitsOnce) {
  Open(2, 8, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(CommitTag(*store_, BundleId(1), kParam, 0, 10));
  for (int64_t step = 1; step <= 100; ++step) {
    // All kinds change together: no reader sees the parameter of one step with moments of another.
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    for (ChunkKind kind : {kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq}) {
      ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
      FillChunk(spare.data(), step * 10 + static_cast<uint64_t>(kind));
      fresh.emplace_back(kind, std::move(spare));
    }
    // Not yet committed: the old version stands.
    ExpectTag(Param(1), step == 1 ? 10 : (step - 1) * 10);
    ASSERT_OK(store_->Commit(BundleId(1), step, absl::MakeSpan(fresh)));
    EXPECT_FALSE(fresh[0].second);
    ExpectTag(Param(1), step * 10);
    // The same update again is refused and changes nothing.
    EXPECT_THAT(CommitTag(*store_, BundleId(1), kParam, step - 1, 7),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be committed")));
    ExpectTag(Param(1), step * 10);
    EXPECT_EQ(store_->CommittedStep(BundleId(1)), step);
    EXPECT_EQ(store_->stored_bytes().host_bytes, 3 * kTestChunkBytes);
  }
  const std::vector<SeenChunk> seen = Look("store");
  EXPECT_EQ(seen.at(Param(1).value()).commit_step, 100);
  EXPECT_EQ(seen.at(Param(1).value()).state, ChunkState::kHold);
  EXPECT_EQ(seen.at(Param(0).value()).state, ChunkState::kFree);
}

TEST_F(ChunkStoreTest, ACommitOfAGradientOrOfAnothersSlotIsRefused) {
  Open(3, 6, 0);
  if (HasFatalFailure()) return;
  EXPECT_THAT(CommitTag(*store_, BundleId(0), kGrad, 0, 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 0, 1));
  {
    ASSERT_OK_AND_ASSIGN(HostChunk other, store_->Acquire(Param(0)));
    std::pair<ChunkKind, HostChunk> fresh(kParam, std::move(other));
    EXPECT_THAT(store_->Commit(BundleId(1), 0, absl::MakeSpan(&fresh, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_TRUE(fresh.second);  // Nothing has changed.
  }
  EXPECT_FALSE(store_->HasPayload(Param(1)));
  ExpectTag(Param(0), 1);
}

TEST_F(ChunkStoreTest, AChunkFilledInPlaceIsCommittedWhereItLies) {
  Open(1, 1, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(HostChunk host, store_->AcquireUncommitted(Param(0)));
  FillChunk(host.data(), 3);
  std::pair<ChunkKind, HostChunk> fresh(kParam, std::move(host));
  ASSERT_OK(store_->Commit(BundleId(0), 0, absl::MakeSpan(&fresh, 1)));
  EXPECT_TRUE(store_->IsCommitted(Param(0)));
  ExpectTag(Param(0), 3);
}

TEST_F(ChunkStoreTest, AReplacedSlotStaysWhileItIsHeld) {
  Open(1, 2, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 0, 1));
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk old, store_->Acquire(Param(0)));
    ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 1, 2));
    EXPECT_TRUE(ChunkHolds(old.data(), 1));
    EXPECT_THAT(store_->AcquireSpare(), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_OK(store_->AcquireSpare());
  ExpectTag(Param(0), 2);
}

TEST_F(ChunkStoreTest, AReplacedChunkKeepsItsBundlesStep) {
  Open(2, 4, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 7, 1));
  ASSERT_OK_AND_ASSIGN(HostChunk fresh, store_->AcquireSpare());
  FillChunk(fresh.data(), 2);
  ASSERT_OK(store_->Replace(Param(0), std::move(fresh)));
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), 7);
  ExpectTag(Param(0), 2);

  ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
  EXPECT_THAT(store_->Replace(Param(1), std::move(spare)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not committed")));
  ExpectPlacesDiffer();
}

TEST_F(ChunkStoreTest, SpillsTheLeastRecentlyUsedAndReadsItBack) {
  Open(12, 4, 12);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 12; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
  EXPECT_EQ(store_->stored_bytes().host_bytes, 4 * kTestChunkBytes);
  EXPECT_EQ(store_->stored_bytes().nvme_bytes, 8 * kTestChunkBytes);
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, 8 * kTestChunkBytes);
  std::vector<SeenChunk> seen = Look("store");
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(seen.at(Param(i).value()).tier, i < 8 ? Tier::kNvme : Tier::kHost) << i;
    EXPECT_EQ(seen.at(Param(i).value()).commit_step, 0) << i;
    EXPECT_EQ(store_->CommittedPlace(Param(i))->tier, i < 8 ? Tier::kNvme : Tier::kHost) << i;
    EXPECT_FALSE(seen.at(Param(i).value()).invalid) << i;
  }
  for (int64_t i = 0; i < 12; ++i) ExpectTag(Param(i), i);
}

TEST_F(ChunkStoreTest, ACleanHostCopyIsDroppedWithoutAWrite) {
  Open(12, 4, 12);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 12; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
  for (int64_t i = 0; i < 12; ++i) ExpectTag(Param(i), i);  // Every one is on NVME after this.
  const int64_t written = store_->stored_bytes().nvme_written_bytes;
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < 12; ++i) ExpectTag(Param(i), i);
  }
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, written);
  EXPECT_EQ(store_->stored_bytes().nvme_bytes, 12 * kTestChunkBytes);
}

TEST_F(ChunkStoreTest, NvmeSlotsOfCachedChunksAreReusedWhenNvmeIsFull) {
  // 8 chunks in 4 + 4 slots: every copy counts. Reading one back must not keep both of its slots.
  Open(8, 5, 4);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 8; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
  std::mt19937_64 random(/*seed=*/5);
  for (int step = 0; step < 500; ++step) {
    const int64_t i = static_cast<int64_t>(random() % 8);
    ExpectTag(Param(i), i);
    ExpectPlacesDiffer();
    if (HasFailure()) FAIL() << "step " << step;
  }
  for (const SeenChunk& chunk : Look("store")) EXPECT_FALSE(chunk.invalid);
}

TEST_F(ChunkStoreTest, AGradientIsSpilledAndComesBackWritable) {
  Open(8, 2, 8);
  if (HasFatalFailure()) return;
  for (int round = 1; round <= 3; ++round) {
    for (int64_t i = 0; i < 8; ++i) {
      ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireUncommitted(Grad(i)));
      if (round > 1) {
        EXPECT_TRUE(ChunkHolds(grad.data(), (round - 1) * 100 + i));
      }
      FillChunk(grad.data(), round * 100 + i);
    }
  }
  for (int64_t i = 0; i < 8; ++i) ExpectTag(Grad(i), 300 + i);
  EXPECT_EQ(store_->CommittedStep(BundleId(0)), -1);
  for (int64_t i = 0; i < 8; ++i) store_->Free(Grad(i));
  EXPECT_EQ(store_->stored_bytes().host_bytes + store_->stored_bytes().nvme_bytes, 0);
}

TEST_F(ChunkStoreTest, NoRoomSaysWhatIsHeldAndWhatToRaise) {
  Open(4, 2, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK_AND_ASSIGN(const HostChunk one, store_->AcquireSpare());
  ASSERT_OK_AND_ASSIGN(const HostChunk two, store_->AcquireSpare());
  EXPECT_THAT(store_->AcquireSpare(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::AllOf(HasSubstr("all 2 (8 KiB) are taken, 2 of them held"),
                                        HasSubstr("--host-memory"))));
}

TEST_F(ChunkStoreTest, AServerThatIsGoneMakesIoUnavailableWithinASecond) {
  Open(12, 4, 12);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 12; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
  server_.reset();
  const absl::Time start = absl::Now();
  EXPECT_THAT(store_->Acquire(Param(0)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  ExpectTag(Param(11), 11);  // What is in HOST is still there.
}

TEST_F(ChunkStoreTest, AServerThatStopsWhileThreadsDoIoLeavesNobodyWaiting) {
  Open(16, 4, 16);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < 16; ++i) ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, 0, i));
  std::atomic<int64_t> reads{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this, t, &reads] {
      std::mt19937_64 random(t);
      for (;;) {
        const int64_t i = static_cast<int64_t>(random() % 16);
        const auto host = store_->Acquire(Param(i));
        if (absl::IsResourceExhausted(host.status())) continue;  // Others hold all slots.
        if (!host.ok()) {
          EXPECT_THAT(host, StatusIs(absl::StatusCode::kUnavailable));
          return;
        }
        EXPECT_TRUE(ChunkHolds(host->data(), i));
        ++reads;
        reads.notify_all();
      }
    });
  }
  int64_t seen;
  while ((seen = reads) < 200) reads.wait(seen);
  const absl::Time start = absl::Now();
  server_.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

// Property: whatever moves, each chunk holds what was last written to it, and the server finds
// every word and record valid.
TEST_F(ChunkStoreTest, RandomUseKeepsEveryByteAndEveryRecord) {
  constexpr int64_t kBundles = 6;
  Open(kBundles, /*host_slots=*/5, /*nvme_slots=*/30);
  if (HasFatalFailure()) return;
  std::mt19937_64 random(/*seed=*/11);
  std::map<ChunkId, uint64_t> model;  // Tag of each chunk that is not FREE.
  std::map<BundleId, int64_t> steps;
  for (int step = 0; step < 3000; ++step) {
    const BundleId bundle(static_cast<int64_t>(random() % kBundles));
    const ChunkId grad = ChunkOf(bundle, kGrad);
    const uint64_t tag = static_cast<uint64_t>(step) + 1;
    switch (random() % 5) {
      case 0: {
        const auto kind = static_cast<ChunkKind>(random() % 4);
        const int64_t at = steps.contains(bundle) ? steps[bundle] + (random() % 2) : 0;
        ASSERT_OK(CommitTag(*store_, bundle, kind, at, tag));
        steps[bundle] = at;
        model[ChunkOf(bundle, kind)] = tag;
        break;
      }
      case 1: {
        ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->AcquireUncommitted(grad));
        FillChunk(host.data(), tag);
        model[grad] = tag;
        break;
      }
      case 2: {
        ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->AcquireToOverwrite(grad));
        FillChunk(host.data(), tag);
        model[grad] = tag;
        break;
      }
      case 3:
        if (random() % 4 == 0) {
          store_->Free(grad);
          model.erase(grad);
        }
        break;
      default: {
        const ChunkId chunk(static_cast<int64_t>(random() % (kBundles * kNumChunkKinds)));
        const auto host = store_->Acquire(chunk);
        if (!model.contains(chunk)) {
          ASSERT_THAT(host, StatusIs(absl::StatusCode::kNotFound));
        } else {
          ASSERT_OK(host);
          ASSERT_TRUE(ChunkHolds(host->data(), model[chunk])) << "step " << step;
        }
      }
    }
    ExpectPlacesDiffer();
    if (HasFailure()) FAIL() << "step " << step;
    if (step % 500 != 0) continue;
    const std::vector<SeenChunk> seen = Look("store");
    ASSERT_EQ(seen.size(), kBundles * kNumChunkKinds);
    for (int64_t i = 0; i < kBundles * kNumChunkKinds; ++i) {
      ASSERT_FALSE(seen[i].invalid) << i;
      ASSERT_EQ(seen[i].state == ChunkState::kFree, !model.contains(ChunkId(i))) << i;
    }
  }
  EXPECT_GT(store_->stored_bytes().nvme_written_bytes, 0);
  for (const auto& [chunk, tag] : model) ExpectTag(chunk, tag);
}

TEST_F(ChunkStoreTest, ThreadsWithTheirOwnBundlesDoNotDisturbEachOther) {
  constexpr int kThreads = 3;
  constexpr int64_t kEach = 8;  // More than HOST holds, for each thread alone.
  Open(kEach * kThreads, /*host_slots=*/2 * kThreads + 1, /*nvme_slots=*/40);
  if (HasFatalFailure()) return;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &start] {
      std::mt19937_64 random(t);
      std::map<int64_t, uint64_t> model;
      start.arrive_and_wait();
      for (int step = 1; step <= 500; ++step) {
        const int64_t i = kEach * t + static_cast<int64_t>(random() % kEach);
        const uint64_t tag = static_cast<uint64_t>(step) * 10 + t;
        // Two slots a thread at most are held at once, so there is always one.
        if (random() % 2 == 0) {
          ASSERT_OK(CommitTag(*store_, BundleId(i), kParam, step, tag));
          model[i] = tag;
        } else if (model.contains(i)) {
          ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(Param(i)));
          ASSERT_TRUE(ChunkHolds(host.data(), model[i]));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store_->stored_bytes().nvme_read_bytes, 100 * kTestChunkBytes);
}

}  // namespace
}  // namespace gemini::client
