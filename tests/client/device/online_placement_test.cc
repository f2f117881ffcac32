// SPDX-License-Identifier: Apache-2.0
// What other threads do while one that fetches on-line is held up in an NVMe read, or in a
// write-back: no lock is held then.
#include "client/device/online_placement.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <future>
#include <latch>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "client/copy/copy_engine_host.h"
#include "client/device/residency.h"
#include "tests/client/session/faulty_session_fixture.h"

namespace gemini::client {
namespace {

using std::chrono_literals::operator""s;

constexpr int64_t kBundles = 12;
constexpr int64_t kHostSlots = 5;

// Whose next wait for a write-back is held up.
class HeldCopies : public CopyEngineHost {
 public:
  void HoldNextWriteBack() { armed_ = true; }
  void Wait(CopyEvent event) override {
    if (event.sequences[static_cast<size_t>(CopyStream::kEvict)] > 0 && armed_.exchange(false)) {
      begun_.count_down();
      go_.wait();
    }
    CopyEngineHost::Wait(event);
  }
  void AwaitBegun() { begun_.wait(); }
  void Go() { go_.count_down(); }

 private:
  std::atomic<bool> armed_{false};
  std::latch begun_{1}, go_{1};
};

// A space whose parameters have their numbers as tags. Those from kBundles - kHostSlots on are in
// HOST, and all but these on NVMe.
class OnlinePlacementTest : public FaultySessionFixture {
 protected:
  void Open(int64_t device_slots) {
    OpenSession(device_slots, kHostSlots, kBundles);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("space", kBundles, kHostSlots, kBundles);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < kBundles; ++i) {
      ASSERT_OK(CommitTag(*store_, BundleId(i), ChunkKind::kParam, 0, i));
    }
    arena_.resize(device_slots * chunk_bytes_);
    budget_.emplace(device_slots * chunk_bytes_);
    own_.emplace(*budget_, copies_, arena_.data(), device_slots, chunk_bytes_);
    for (int64_t i = 0; i < kBundles; ++i) {
      ranges_.push_back(own_->AddRange(*store_, BundleId(i), 1, ChunkKind::kParam));
    }
  }
  void TearDown() override { own_.reset(); }  // Before what it copies by.

  absl::Status PinAndCheck(std::vector<int64_t> bundles) {
    std::vector<RangeId> set;
    for (const int64_t bundle : bundles) set.push_back(ranges_[bundle]);
    std::vector<std::byte*> addresses(set.size());
    const absl::Status status = own_->Pin(set, absl::MakeSpan(addresses));
    if (!status.ok()) return status;
    for (size_t i = 0; i < set.size(); ++i) {
      EXPECT_TRUE(ChunkHolds(addresses[i], static_cast<uint64_t>(bundles[i])));
      own_->Unpin(set[i], /*dirty=*/false);
    }
    return absl::OkStatus();
  }
  std::future<absl::Status> BeginToPin(std::vector<int64_t> bundles) {
    return std::async(std::launch::async, [this, bundles] { return PinAndCheck(bundles); });
  }
  // Begins to pin the set, and returns when that is held up in its next NVMe transfer.
  std::future<absl::Status> PinUntilNvme(std::vector<int64_t> bundles) {
    faults_.AtNextSubmit([this] {
      begun_.count_down();
      go_.wait();
    });
    std::future<absl::Status> pinned = BeginToPin(std::move(bundles));
    begun_.wait();
    return pinned;
  }
  // Whether it comes to its end, in a time that is beyond what it takes, while the other is held.
  template <typename T>
  bool Ends(const std::future<T>& result) {
    const bool ends = result.wait_for(20s) == std::future_status::ready;
    if (!ends) go_.count_down();
    return ends;
  }
  int64_t Fetched() { return own_->stats().fetch_bytes / chunk_bytes_; }

  ChunkStore* store_ = nullptr;
  HeldCopies copies_;
  std::latch begun_{1}, go_{1};
  std::vector<std::byte> arena_;
  std::optional<DeviceBudget> budget_;
  std::optional<Residency> own_;
  std::vector<RangeId> ranges_;
};

TEST_F(OnlinePlacementTest, APinOfAResidentRangeDoesNotWaitForAnothersNvmeRead) {
  Open(/*device_slots=*/2);
  if (HasFatalFailure()) return;
  ASSERT_OK(PinAndCheck({11}));
  std::future<absl::Status> held = PinUntilNvme({0});
  std::future<absl::Status> resident = BeginToPin({11});
  ASSERT_TRUE(Ends(resident));
  EXPECT_OK(resident.get());
  go_.count_down();
  EXPECT_OK(held.get());
}

TEST_F(OnlinePlacementTest, APinOfAResidentRangeDoesNotWaitForAnothersWriteBack) {
  Open(/*device_slots=*/2);
  if (HasFatalFailure()) return;
  std::byte* address = nullptr;
  ASSERT_OK(own_->Pin({&ranges_[10], 1}, {&address, 1}));
  own_->Unpin(ranges_[10], /*dirty=*/true);
  ASSERT_OK(PinAndCheck({11}));
  copies_.HoldNextWriteBack();
  std::future<absl::Status> held = BeginToPin({9});  // In the place of the tenth.
  copies_.AwaitBegun();
  std::future<absl::Status> resident = BeginToPin({11});
  const bool ends = resident.wait_for(20s) == std::future_status::ready;
  copies_.Go();
  EXPECT_TRUE(ends);
  EXPECT_OK(held.get());
  EXPECT_EQ(own_->stats().evict_bytes, chunk_bytes_);
  EXPECT_OK(PinAndCheck({10}));
}

TEST_F(OnlinePlacementTest, TwoThreadsThatFetchAtOnceTakeTurns) {
  Open(/*device_slots=*/2);
  if (HasFatalFailure()) return;
  std::future<absl::Status> first = PinUntilNvme({0});
  std::future<absl::Status> second = BeginToPin({1});
  go_.count_down();
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_EQ(Fetched(), 2);
}

TEST_F(OnlinePlacementTest, WhatOneFetchesAnotherFindsThere) {
  Open(/*device_slots=*/1);
  if (HasFatalFailure()) return;
  std::future<absl::Status> first = PinUntilNvme({0});
  std::future<absl::Status> second = BeginToPin({0});
  go_.count_down();
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  EXPECT_EQ(Fetched(), 1);
}

// The oldest would leave, but it is a part of the set that is being fetched.
TEST_F(OnlinePlacementTest, WhatIsThereOfASetStaysUntilTheRestHasCome) {
  Open(/*device_slots=*/4);
  if (HasFatalFailure()) return;
  ASSERT_OK(PinAndCheck({11}));
  ASSERT_OK(PinAndCheck({10}));
  std::future<absl::Status> held = PinUntilNvme({11, 0});
  EXPECT_TRUE(own_->MakeRoom(2 * chunk_bytes_));
  EXPECT_EQ(own_->DeviceSlot(ranges_[10]), SlotId());
  EXPECT_NE(own_->DeviceSlot(ranges_[11]), SlotId());
  go_.count_down();
  EXPECT_OK(held.get());
  EXPECT_EQ(Fetched(), 3);
}

TEST_F(OnlinePlacementTest, WhatIsDroppedOnItsWayIsFetchedAgain) {
  Open(/*device_slots=*/1);
  if (HasFatalFailure()) return;
  std::future<absl::Status> held = PinUntilNvme({0});
  EXPECT_OK(own_->Drop(ranges_[0]));
  EXPECT_OK(own_->Drop(ranges_[0]));
  go_.count_down();
  EXPECT_OK(held.get());
  EXPECT_EQ(Fetched(), 2);
  EXPECT_EQ(budget_->used_bytes(), chunk_bytes_);
}

TEST_F(OnlinePlacementTest, AReadThatFailsIsItsReadersAloneAndLeavesNothing) {
  Open(/*device_slots=*/3);
  if (HasFatalFailure()) return;
  ASSERT_OK(PinAndCheck({11}));
  // Chunks that NVMe has, too, make room without a transfer: the next one is the read.
  for (int64_t i = 1; i <= kHostSlots; ++i) {
    ASSERT_OK(store_->Acquire(ChunkOf(BundleId(i), ChunkKind::kParam)).status());
  }
  faults_.Arm(server::NvmeFault::kFails, 1);
  std::future<absl::Status> first = PinUntilNvme({11, 0});
  std::future<absl::Status> second = BeginToPin({11, 1});
  go_.count_down();
  EXPECT_THAT(first.get(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_OK(second.get());
  EXPECT_EQ(budget_->used_bytes(), 2 * chunk_bytes_);
  EXPECT_EQ(own_->DeviceSlot(ranges_[0]), SlotId());
  for (const SeenChunk& chunk : Look("space")) EXPECT_EQ(chunk.pins, 0);
  EXPECT_OK(PinAndCheck({11, 2}));
}

// Property: whatever the others do, each finds its bytes, and all comes to its end.
TEST_F(OnlinePlacementTest, ThreadsThatMoveOverNvmeAtOnceFindTheirBytes) {
  constexpr int64_t kThreads = 3;
  constexpr int64_t kEach = kBundles / kThreads;
  Open(/*device_slots=*/2 * kThreads);
  if (HasFatalFailure()) return;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      std::vector<uint64_t> tags;
      for (int64_t i = 0; i < kEach; ++i) tags.push_back(static_cast<uint64_t>(t * kEach + i));
      start.arrive_and_wait();
      for (uint64_t step = 1; step <= 400; ++step) {
        const auto a = static_cast<int64_t>(random() % kEach);
        const auto b = static_cast<int64_t>(random() % kEach);
        const std::vector<RangeId> set = {ranges_[t * kEach + a], ranges_[t * kEach + b]};
        switch (random() % 6) {
          case 0:
            own_->MakeRoom(static_cast<int64_t>(random() % 3) * chunk_bytes_);
            break;
          case 1:
            ASSERT_OK(own_->WriteBack(set[0]));
            break;
          case 2:
            ASSERT_OK(own_->Flush(set[0]));
            ASSERT_OK(own_->Drop(set[0]));
            break;
          default:
            break;
        }
        std::vector<std::byte*> addresses(2);
        ASSERT_OK(own_->Pin(set, absl::MakeSpan(addresses)));
        ASSERT_TRUE(ChunkHolds(addresses[0], tags[a]) && ChunkHolds(addresses[1], tags[b]));
        const bool write = random() % 3 == 0;
        if (write) {
          tags[a] = 100 * step + static_cast<uint64_t>(t);
          FillChunk(addresses[0], tags[a]);
        }
        own_->Unpin(set[0], write);
        own_->Unpin(set[1], false);
        ASSERT_LE(budget_->used_bytes(), budget_->budget_bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store_->stored_bytes().nvme_read_bytes, 0);
  EXPECT_GT(own_->stats().evict_bytes, 0);
  for (const SeenChunk& chunk : Look("space")) EXPECT_EQ(chunk.pins, 0);
}

}  // namespace
}  // namespace gemini::client
