// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_uring.h"

#include <optional>
#include <thread>

#include "tests/conformance/nvme_io_conformance.h"
#include "tests/server/denied_calls.h"
#include "tests/server/locked_memory.h"

namespace gemini::server {
namespace {

// The engine on a loop with a thread, as in a server.
class UringOnItsLoop : public NvmeIo {
 public:
  explicit UringOnItsLoop(bool may_pin) {
    std::latch ready(1);
    thread_ = std::thread([&, may_pin] {
      if (!may_pin) no_pins_.emplace();
      loop_ = *EventLoop::Make();
      absl::StatusOr<std::unique_ptr<NvmeIo>> engine = MakeUringNvmeIo(*loop_);
      EXPECT_OK(engine);
      engine_ = *std::move(engine);
      ready.count_down();
      loop_->Run();
    });
    ready.wait();
  }
  ~UringOnItsLoop() override {
    loop_->Post([this] {
      engine_.reset();
      loop_->Stop();
    });
    thread_.join();
  }
  void Submit(const NvmeTransfer& transfer, Done done) override {
    loop_->Post([this, transfer, done = std::move(done)]() mutable {
      engine_->Submit(transfer, std::move(done));
    });
  }
  void Cancel(uint64_t tenant, uint64_t space) override {
    loop_->Post([this, tenant, space] { engine_->Cancel(tenant, space); });
  }
  void Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) override {
    loop_->Post([this, fds = std::vector<int>(host_fds.begin(), host_fds.end()),
                 forgotten = std::move(forgotten)]() mutable {
      engine_->Forget(fds, std::move(forgotten));
    });
  }
  void OnItsThread(EventLoop::Message message) { loop_->Post(std::move(message)); }

 private:
  std::optional<LittleLockedMemory> no_pins_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<NvmeIo> engine_;
  std::thread thread_;
};

std::unique_ptr<NvmeIo> MakePinning() { return std::make_unique<UringOnItsLoop>(true); }
std::unique_ptr<NvmeIo> MakeWithoutPins() { return std::make_unique<UringOnItsLoop>(false); }

const auto kEngines =
    ::testing::Values(NvmeIoCase{"Buffered", MakePinning}, NvmeIoCase{"Direct", MakePinning, true},
                      NvmeIoCase{"DirectWithoutPins", MakeWithoutPins, true});
const auto kName = [](const auto& tested) { return tested.param.name; };

INSTANTIATE_TEST_SUITE_P(Uring, NvmeIoConformance, kEngines, kName);
INSTANTIATE_TEST_SUITE_P(Uring, NvmeIoTurnsConformance, kEngines, kName);

class UringPinsTest : public NvmeIoConformance {};

INSTANTIATE_TEST_SUITE_P(Uring, UringPinsTest,
                         ::testing::Values(NvmeIoCase{"Direct", MakePinning, true},
                                           NvmeIoCase{"DirectWithoutPins", MakeWithoutPins, true}),
                         [](const auto& tested) { return tested.param.name; });

// What is pinned at first use stays so until the slab is forgotten; what may not be is mapped.
TEST_P(UringPinsTest, PagesArePinnedFromTheFirstUseToForget) {
  const int64_t before = PinnedBytes();
  const MappedSlab slab(40 * kMiB);
  ASSERT_EQ(::posix_fallocate(file_.get(), 0, 40 * kMiB), 0);
  ASSERT_OK(Run({IoOperation::kWrite, slab.fd.get(), 18 * kMiB, nvme_.get(), 0, kMiB}));
  const bool pins = GetParam().name == "Direct";
  EXPECT_EQ(PinnedBytes() - before, pins ? 16 * kMiB : 0);
  ASSERT_OK(Run({IoOperation::kWrite, slab.fd.get(), 0, nvme_.get(), 0, 40 * kMiB}));
  EXPECT_EQ(PinnedBytes() - before, pins ? 40 * kMiB : 0);
  Forget(slab.fd.get());
  EXPECT_EQ(PinnedBytes(), before);
  // And again.
  ASSERT_OK(Run({IoOperation::kRead, slab.fd.get(), 0, nvme_.get(), 0, 40 * kMiB}));
  EXPECT_EQ(PinnedBytes() - before, pins ? 40 * kMiB : 0);
  io_.reset();
  EXPECT_EQ(PinnedBytes(), before);
}

class UringRefusalTest : public NvmeIoConformance {};

INSTANTIATE_TEST_SUITE_P(Uring, UringRefusalTest,
                         ::testing::Values(NvmeIoCase{"Direct", MakePinning, true}));

TEST_P(UringRefusalTest, WhatTheKernelDoesNotTakeIsTriedAgainAndDroppedAtTheEnd) {
  static_cast<UringOnItsLoop&>(*io_).OnItsThread(DenyLoneSubmissions);
  FillHost(0, 'r');
  std::latch both(2);
  std::atomic<int> failed = 0;
  const auto submit = [&](int64_t nvme_chunk) {
    io_->Submit(Transfer(IoOperation::kWrite, 0, nvme_chunk), [&](const absl::Status& status) {
      failed += status.ok() ? 0 : 1;
      both.count_down();
    });
  };
  submit(1);
  // Some turns of the loop, in which one request alone is refused.
  for (int turn = 0; turn < 10; ++turn) Forget(file_.get());
  EXPECT_FALSE(both.try_wait());
  submit(2);
  both.wait();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(Chunk(file_.get(), 1), std::string(kChunk, 'r'));
  EXPECT_EQ(Chunk(file_.get(), 2), std::string(kChunk, 'r'));
  absl::Status dropped;
  io_->Submit(Transfer(IoOperation::kWrite, 0, 3),
              [&](const absl::Status& status) { dropped = status; });
  Forget(file_.get());
  io_.reset();
  EXPECT_THAT(dropped, StatusIs(absl::StatusCode::kAborted));
}

// More at a time than the engine gives the kernel.
TEST_P(UringPinsTest, ALargeChunkGoesAllTheWayInPieces) {
  constexpr int64_t kLarge = 150 * kMiB + kPageBytes;
  const MappedSlab slab(kLarge);
  ASSERT_EQ(::posix_fallocate(file_.get(), 0, kLarge), 0);
  for (int64_t i = 0; i < kLarge / 8; i += 512) slab.words()[i] = i + 1;
  ASSERT_OK(Run({IoOperation::kWrite, slab.fd.get(), 0, nvme_.get(), 0, kLarge}));
  std::memset(slab.memory.data(), 0, kLarge);
  ASSERT_OK(Run({IoOperation::kRead, slab.fd.get(), 0, nvme_.get(), 0, kLarge}));
  for (int64_t i = 0; i < kLarge / 8; i += 512) ASSERT_EQ(slab.words()[i], i + 1u);
}

}  // namespace
}  // namespace gemini::server
