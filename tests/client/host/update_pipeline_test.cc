// SPDX-License-Identifier: Apache-2.0
// Optimizer states whose home is NVME: read ahead of their update, written behind it, and the same
// bits as in memory.
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/host/chunk_mover.h"
#include "client/update/bundle_update.h"
#include "client/update/update_queue.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/state_format.h"
#include "tests/client/session/faulty_session_fixture.h"

namespace gemini::client {
namespace {

using server::NvmeFault;

constexpr int64_t kBundles = 12;
constexpr absl::Duration kLong = absl::Seconds(60);  // Only a machine that swaps gets there.

class UpdatePipelineTest : public FaultySessionFixture {
 protected:
  // A space of bf16 parameters with one tensor a bundle; gradients and parameters lie in HOST in
  // any case.
  void Open(bool states_on_nvme) {
    queue_.reset();
    store_ = nullptr;
    session_.reset();
    const int64_t states = kBundles * (UpdatedKinds(format_).size() - 1);
    SpaceOptions space = {.name = "store",
                          .num_bundles = kBundles,
                          .host_slots = 2 * kBundles + SpareSlots(format_),
                          .nvme_slots = 0,
                          .num_tensors = kBundles,
                          .format = format_,
                          .states_on_nvme = states_on_nvme};
    if (states_on_nvme) {
      space.host_slots += StateWindowSlots(format_);
      space.nvme_slots = states;
    } else {
      space.host_slots += states;
    }
    OpenSession(/*device_slots=*/4, space.host_slots, space.nvme_slots);
    if (HasFatalFailure()) return;
    ASSERT_OK_AND_ASSIGN(store_, session_->OpenSpace(space));
    for (int64_t i = 0; i < kBundles; ++i) {
      std::vector<std::pair<ChunkKind, HostChunk>> fresh;
      for (const ChunkKind kind : KindsOfValue(format_, ChunkKind::kParam)) {
        ASSERT_OK_AND_ASSIGN(HostChunk chunk, store_->AcquireSpare());
        FillValues(chunk, static_cast<uint64_t>(100 * i) + static_cast<uint64_t>(kind));
        fresh.emplace_back(kind, std::move(chunk));
      }
      ASSERT_OK(store_->Commit(BundleId(i), 0, absl::MakeSpan(fresh)));
    }
    intent_ = {};
    queue_ = std::make_unique<UpdateQueue>(
        *store_, nullptr, [this](BundleId bundle) { return Update(bundle); },
        [](const absl::Status&) {});
  }
  ~UpdatePipelineTest() override { queue_.reset(); }

  // Small bf16 numbers.
  static void FillValues(const HostChunk& chunk, uint64_t seed) {
    auto* const words = reinterpret_cast<uint16_t*>(chunk.data());
    for (int64_t i = 0; i < kTestChunkBytes / 2; ++i) {
      const auto mixed = static_cast<uint16_t>((seed + i) * 40503u);
      words[i] = static_cast<uint16_t>(0x3a00 | (mixed & 0x80ff));
    }
  }
  absl::StatusOr<bool> Update(BundleId bundle) {
    if (before_update_) before_update_(bundle);
    const TensorPiece all = {.tensor = bundle.value(), .size_bytes = kTestChunkBytes};
    return UpdateBundle(*store_, bundle, {&all, 1}, intent_, session_->update_team());
  }
  absl::Status Begin(bool skip = false) {
    ++intent_.step;
    intent_.learning_rate = 1e-2;
    intent_.beta1 = 0.9;
    intent_.beta2 = 0.95;
    intent_.epsilon = 1e-8;
    intent_.skip = skip;
    intent_.tensors.assign(kBundles, {.has_gradient = true, .step = intent_.step});
    std::vector<BundleId> bundles;
    for (int64_t i = 0; i < kBundles; ++i) bundles.push_back(BundleId(i));
    const absl::Status status = store_->updates().Begin(intent_, bundles);
    if (status.ok()) queue_->Wake();
    return status;
  }
  void Step() {
    for (int64_t i = 0; i < kBundles; ++i) {
      ASSERT_OK_AND_ASSIGN(const HostChunk grad,
                           store_->AcquireToOverwrite(ChunkOf(BundleId(i), ChunkKind::kGrad)));
      FillValues(grad, static_cast<uint64_t>(1000 * (intent_.step + 1) + i));
    }
    ASSERT_OK(queue_->Finish());
    ASSERT_OK(Begin());
  }
  std::vector<std::vector<std::byte>> AllBytes() {
    std::vector<std::vector<std::byte>> bytes;
    for (int64_t i = 0; i < kBundles; ++i) {
      for (const ChunkKind kind : UpdatedKinds(format_)) {
        auto chunk = store_->Acquire(ChunkOf(BundleId(i), kind));
        EXPECT_OK(chunk);
        if (!chunk.ok()) continue;
        bytes.emplace_back(chunk->data(), chunk->data() + kTestChunkBytes);
      }
    }
    return bytes;
  }
  // Waits until so many optimizer states are not in HOST.
  void AwaitStatesAtHome(int64_t count) {
    const absl::Time deadline = absl::Now() + kLong;
    for (;;) {
      const std::vector<SeenChunk> seen = Look("store");
      int64_t at_home = 0;
      for (size_t i = 0; i < seen.size(); ++i) {
        const bool is_state = IsOptimizerState(KindOf(ChunkId(static_cast<int64_t>(i))));
        if (seen[i].state == ChunkState::kFree) continue;
        if (is_state && seen[i].tier == Tier::kNvme) ++at_home;
        if (!is_state) {
          ASSERT_EQ(seen[i].tier, Tier::kHost) << "chunk " << i;
        }
      }
      if (at_home == count) return;
      ASSERT_LT(absl::Now(), deadline) << at_home << " of " << count << " are at home";
      std::this_thread::yield();
    }
  }

  static constexpr StateFormat format_ = {.element = ElementType::kBf16};
  static constexpr int64_t kStates = kBundles * (UpdatedKinds(format_).size() - 1);
  ChunkStore* store_ = nullptr;
  Intent intent_;
  std::function<void(BundleId)> before_update_;
  std::unique_ptr<UpdateQueue> queue_;
};

TEST_F(UpdatePipelineTest, BitsAreThoseOfEverythingInMemory) {
  std::vector<std::vector<std::byte>> in_memory;
  for (const bool states_on_nvme : {false, true}) {
    Open(states_on_nvme);
    for (int step = 0; step < 5 && !HasFatalFailure(); ++step) Step();
    if (HasFatalFailure()) return;
    ASSERT_OK(queue_->Finish());
    if (!states_on_nvme) in_memory = AllBytes();
  }
  EXPECT_EQ(AllBytes(), in_memory);
  EXPECT_GE(store_->stored_bytes().nvme_read_bytes, 3 * kStates * kTestChunkBytes);
}

TEST_F(UpdatePipelineTest, StatesGoHomeBehindTheirUpdateAndNothingElseLeaves) {
  Open(/*states_on_nvme=*/true);
  if (HasFatalFailure()) return;
  AwaitStatesAtHome(kBundles);  // Masters.
  for (int step = 0; step < 3 && !HasFatalFailure(); ++step) {
    Step();
    if (HasFatalFailure()) return;
    ASSERT_OK(queue_->Finish());
    AwaitStatesAtHome(kStates);
  }
  if (HasFatalFailure()) return;
  // The records name them there: whoever reads the commit words after a death finds them.
  for (int64_t i = 0; i < kBundles; ++i) {
    for (const ChunkKind kind : UpdatedKinds(format_)) {
      const std::optional<ChunkSlot> place = store_->CommittedPlace(ChunkOf(BundleId(i), kind));
      ASSERT_TRUE(place.has_value());
      EXPECT_EQ(place->tier, IsOptimizerState(kind) ? Tier::kNvme : Tier::kHost);
    }
  }
  // No byte moves but once each way a step.
  const int64_t a_step = kStates * kTestChunkBytes;
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, 3 * a_step + kBundles * kTestChunkBytes);
}

TEST_F(UpdatePipelineTest, WhatOthersReadOfThemLeavesAgainWithoutAWrite) {
  Open(/*states_on_nvme=*/true);
  if (HasFatalFailure()) return;
  AwaitStatesAtHome(kBundles);
  const int64_t written = store_->stored_bytes().nvme_written_bytes;
  ASSERT_OK(store_->Acquire(ChunkOf(BundleId(3), ChunkKind::kMaster)));
  AwaitStatesAtHome(kBundles);
  // A skipped step changes nothing, whatever was read for it.
  for (int64_t i = 0; i < kBundles; ++i) {
    ASSERT_OK(store_->AcquireUncommitted(ChunkOf(BundleId(i), ChunkKind::kGrad)));
  }
  ASSERT_OK(Begin(/*skip=*/true));
  ASSERT_OK(queue_->Finish());
  AwaitStatesAtHome(kBundles);
  EXPECT_EQ(store_->stored_bytes().nvme_written_bytes, written);
}

TEST_F(UpdatePipelineTest, StatesOfTheNextBundlesComeWhileOneIsUpdated) {
  Open(/*states_on_nvme=*/true);
  if (HasFatalFailure()) return;
  Step();
  if (HasFatalFailure()) return;
  ASSERT_OK(queue_->Finish());
  AwaitStatesAtHome(kStates);
  if (HasFatalFailure()) return;
  std::latch looked(1);
  before_update_ = [&](BundleId bundle) {
    if (bundle == BundleId(0)) looked.wait();
  };
  Step();
  // The first has not begun to take its own, and the window is full.
  AwaitStatesAtHome(kStates - kStateBundlesInHost * (UpdatedKinds(format_).size() - 1));
  looked.count_down();
  ASSERT_OK(queue_->Finish());
}

TEST_F(UpdatePipelineTest, AChunkThatIsLostFailsItsOwnBundleAndNoneBeforeIt) {
  Open(/*states_on_nvme=*/true);
  if (HasFatalFailure()) return;
  AwaitStatesAtHome(kBundles);
  if (HasFatalFailure()) return;
  for (int64_t i = 0; i < kBundles; ++i) {
    ASSERT_OK(store_->AcquireUncommitted(ChunkOf(BundleId(i), ChunkKind::kGrad)));
  }
  std::latch looked(1);
  before_update_ = [&](BundleId bundle) {
    if (bundle == BundleId(0)) looked.wait();
  };
  faults_.Arm(NvmeFault::kFails, kStateBundlesInHost);  // Of the masters that are read ahead.
  ASSERT_OK(Begin());
  AwaitStatesAtHome(kBundles - kStateBundlesInHost + 1);
  looked.count_down();
  EXPECT_THAT(queue_->Finish(), StatusIs(absl::StatusCode::kDataLoss));
  int64_t lost = 0;
  for (int64_t i = 0; i < kBundles; ++i) {
    const bool is_lost = !store_->Acquire(ChunkOf(BundleId(i), ChunkKind::kMaster)).ok();
    if (is_lost && lost++ == 0) {
      for (int64_t before = 0; before < i; ++before) {
        EXPECT_EQ(store_->CommittedStep(BundleId(before)), 1) << before << " before " << i;
      }
      EXPECT_EQ(store_->CommittedStep(BundleId(i)), 0);
    }
  }
}

TEST_F(UpdatePipelineTest, AFailedMoveThatNobodyAskedForLosesNothing) {
  Open(/*states_on_nvme=*/false);
  for (int step = 0; step < 3 && !HasFatalFailure(); ++step) Step();
  if (HasFatalFailure()) return;
  ASSERT_OK(queue_->Finish());
  const auto in_memory = AllBytes();
  for (const int64_t nth : {1, 3, 5}) {
    Open(/*states_on_nvme=*/true);
    if (HasFatalFailure()) return;
    AwaitStatesAtHome(kBundles);
    std::latch read(1), moved(1);
    before_update_ = [&](BundleId bundle) {
      if (bundle == BundleId(0)) read.wait();
      if (bundle == BundleId(1)) moved.wait();
    };
    Step();
    AwaitStatesAtHome(kBundles - kStateBundlesInHost);
    // Behind the first update its states are written, and the fifth bundle's are read: all unasked.
    faults_.Arm(NvmeFault::kNoSpace, nth);
    read.count_down();
    const absl::Time deadline = absl::Now() + kLong;
    while (!faults_.fired() && absl::Now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(faults_.fired());
    moved.count_down();
    ASSERT_OK(queue_->Finish());
    before_update_ = nullptr;
    for (int step = 0; step < 2 && !HasFatalFailure(); ++step) Step();
    if (HasFatalFailure()) return;
    ASSERT_OK(queue_->Finish());
    EXPECT_EQ(AllBytes(), in_memory);
  }
}

}  // namespace
}  // namespace gemini::client
