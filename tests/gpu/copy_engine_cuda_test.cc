// SPDX-License-Identifier: Apache-2.0
// The copy engine on a real GPU.
#include "client/copy/copy_engine_cuda.h"

#include <algorithm>
#include <array>
#include <latch>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/copy/space_timeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/copy_engine_conformance.h"
#include "tests/conformance/operator_clock_conformance.h"
#include "tests/gpu/probe/probe.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

// Memory that both the GPU and the host read and write.
class ManagedMemory : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t) override {
    void* address = nullptr;
    GEMINI_NEED(::cudaMallocManaged(&address, std::max<size_t>(bytes, 1)));
    return address;
  }
  void do_deallocate(void* address, size_t, size_t) override { ::cudaFree(address); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

// Copies without an error: checked at its end.
class CheckedEngine : public CopyEngine {
 public:
  explicit CheckedEngine(TimelineShm* timeline = nullptr)
      : engine_(*CopyEngineCuda::Make(**CudaDriver::Find(), {.timeline = timeline})) {}
  ~CheckedEngine() override { EXPECT_OK(engine_->status()); }
  using CopyEngine::Copy;
  CopyEvent Copy(CopyStream stream, void* destination, const void* source, int64_t size_bytes,
                 CopyEvent after, CopySubject subject) override {
    return engine_->Copy(stream, destination, source, size_bytes, after, subject);
  }
  void CopyWithin(void* destination, const void* source, int64_t size_bytes) override {
    engine_->CopyWithin(destination, source, size_bytes);
  }
  CopyEvent AfterOperators() override { return engine_->AfterOperators(); }
  void MakeOperatorsWait(CopyEvent event) override { engine_->MakeOperatorsWait(event); }
  OperatorPoint Now() override { return engine_->Now(); }
  std::optional<int64_t> TimeOf(const OperatorPoint& point) const override {
    return engine_->TimeOf(point);
  }
  void AwaitPoint(const OperatorPoint& point) override { engine_->AwaitPoint(point); }
  bool Done(CopyEvent event) const override { return engine_->Done(event); }
  void Wait(CopyEvent event) override { engine_->Wait(event); }
  absl::Status status() const override { return engine_->status(); }

 private:
  const std::unique_ptr<CopyEngineCuda> engine_;
};

ManagedMemory managed;

INSTANTIATE_TEST_SUITE_P(Cuda, CopyEngineConformance,
                         ::testing::Values(CopyEngineCase{
                             .make = [] { return std::make_unique<CheckedEngine>(); },
                             .memory = &managed,
                             .finish_operators =
                                 [] { GEMINI_NEED(::cudaStreamSynchronize(nullptr)); }}));

// As the client has it: HOST registered, DEVICE the GPU's own.
class CopyEngineOnGpu : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = int64_t{64} << 20;
  void SetUp() override {
    GEMINI_NEED(::cudaHostAlloc(&host_, 2 * kBytes, cudaHostAllocDefault));
    GEMINI_NEED(::cudaMalloc(&device_, kBytes));
  }
  void TearDown() override {
    GEMINI_NEED(::cudaFreeHost(host_));
    GEMINI_NEED(::cudaFree(device_));
  }
  std::byte* in() const { return static_cast<std::byte*>(host_); }
  std::byte* out() const { return in() + kBytes; }

  void* host_ = nullptr;
  void* device_ = nullptr;
};

TEST_F(CopyEngineOnGpu, BytesGoThereAndBack) {
  const auto engine = std::make_unique<CheckedEngine>();
  for (int round = 1; round < 20; ++round) {
    std::fill(in(), in() + kBytes, static_cast<std::byte>(round));
    const CopyEvent fetched = engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {});
    const CopyEvent evicted = engine->Copy(CopyStream::kEvict, out(), device_, kBytes, fetched);
    engine->Wait(evicted);
    EXPECT_TRUE(engine->Done(fetched));
    ASSERT_TRUE(std::equal(in(), in() + kBytes, out())) << round;
  }
}

TEST_F(CopyEngineOnGpu, CopiesAreEnqueuedWithoutAWait) {
  const auto engine = std::make_unique<CheckedEngine>();
  CopyEvent last;
  for (int i = 0; i < 50; ++i) {
    last = engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {});
  }
  EXPECT_FALSE(engine->Done(last));  // 3.1 GiB take 50 ms and more.
  engine->Wait(last);
  EXPECT_TRUE(engine->Done(last));
}

TEST_F(CopyEngineOnGpu, TheTimelineHasEachCopyInItsTime) {
  const auto timeline = std::make_unique<TimelineShm>();
  // How far the GPU's clock may be from ours (CopyEngineCuda's anchor), with some room.
  constexpr int64_t kClocksNs = 100'000;
  const int64_t before_ns = TimelineNowNs();
  {
    const auto engine = std::make_unique<CheckedEngine>(timeline.get());
    for (uint32_t chunk = 0; chunk < 20; ++chunk) {
      engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {}, {.space = 3, .chunk = chunk});
    }
  }
  const int64_t after_ns = TimelineNowNs();
  int64_t last_end_ns = before_ns;
  for (uint64_t number = 1; number <= 20; ++number) {
    const std::optional<TimelineEvent> event = ReadTimelineEvent(*timeline, number);
    ASSERT_TRUE(event.has_value()) << number;
    EXPECT_EQ(event->lane, TimelineLane::kFetch);
    EXPECT_EQ(event->space, 3);
    EXPECT_EQ(event->subject, number - 1);
    EXPECT_EQ(event->size_bytes, kBytes);
    EXPECT_GE(event->begin_ns, last_end_ns - kClocksNs);  // One after another.
    EXPECT_GT(event->end_ns, event->begin_ns + 100'000);
    last_end_ns = event->end_ns;
  }
  EXPECT_LE(last_end_ns, after_ns + kClocksNs);
}

// A stream that waits for a copy: the time between the points around the wait is the copy's, which
// the host does not wait for.
TEST_F(CopyEngineOnGpu, PointsAroundAWaitMeasureIt) {
  const auto engine = std::make_unique<CheckedEngine>();
  engine->Wait(engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {}));
  GEMINI_NEED(::cudaDeviceSynchronize());
  CopyEvent last;
  for (int i = 0; i < 20; ++i) {
    last = engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {});
  }
  const int64_t begin_ns = TimelineNowNs();
  const OperatorPoint before = engine->Now();
  engine->MakeOperatorsWait(last);
  const OperatorPoint after = engine->Now();
  const int64_t asked_ns = TimelineNowNs() - begin_ns;
  EXPECT_FALSE(engine->TimeOf(after).has_value());
  engine->AwaitPoint(after);
  const int64_t waited_ns = *engine->TimeOf(after) - *engine->TimeOf(before);
  EXPECT_GT(waited_ns, 5'000'000);  // 1.25 GiB take 20 ms and more.
  EXPECT_LT(asked_ns, waited_ns / 2);
}

TEST_F(CopyEngineOnGpu, APointBehindOperatorsIsBehindThoseOfEachStream) {
  std::array<cudaStream_t, 2> streams = {};
  for (cudaStream_t& stream : streams) {
    GEMINI_NEED(::cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  cudaStream_t current = streams[0];
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CopyEngineCuda> engine,
                       CopyEngineCuda::Make(**CudaDriver::Find(),
                                            {.compute_stream = [&current] { return current; }}));
  auto* const device = static_cast<std::byte*>(device_);
  for (int round = 0; round < 3; ++round) {
    std::fill(out(), out() + kBytes, std::byte{0});
    std::latch released(1);
    GEMINI_NEED(::cudaLaunchHostFunc(
        streams[0], [](void* latch) { static_cast<std::latch*>(latch)->wait(); }, &released));
    current = streams[0];
    GEMINI_NEED(::cudaMemsetAsync(device, 1 + round, kBytes / 2, current));
    const CopyEvent first = engine->AfterOperators();
    current = streams[1];
    GEMINI_NEED(::cudaMemsetAsync(device + kBytes / 2, 11 + round, kBytes / 2, current));
    const CopyEvent both = engine->AfterOperators();
    const CopyEvent evicted = engine->Copy(CopyStream::kEvict, out(), device_, kBytes, both);
    EXPECT_FALSE(engine->Done(first));
    EXPECT_FALSE(engine->Done(both));  // Though its own stream has nothing to do any more.
    EXPECT_FALSE(engine->Done(evicted));
    released.count_down();
    engine->Wait(evicted);
    EXPECT_TRUE(engine->Done(both));
    EXPECT_EQ(out()[0], static_cast<std::byte>(1 + round));
    EXPECT_EQ(out()[kBytes - 1], static_cast<std::byte>(11 + round));
  }
  EXPECT_OK(engine->status());
  for (const cudaStream_t stream : streams) GEMINI_NEED(::cudaStreamDestroy(stream));
}

// On a machine of several GPUs a context on the first one would take half a GiB of it.
TEST_F(CopyEngineOnGpu, AThreadThatChoseNoDeviceHasNoneBehindACopy) {
  const auto engine = std::make_unique<CheckedEngine>();
  std::thread([&] {
    engine->Wait(engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {}));
    CUcontext context = nullptr;
    GEMINI_NEED((*CudaDriver::Find())->CtxGetCurrent(&context));
    EXPECT_EQ(context, nullptr);
  }).join();
}

// The last one: a driver that does not see the mistake at once leaves this process without its GPU.
TEST_F(CopyEngineOnGpu, BehindAnErrorNothingIsCopiedAndNobodyWaits) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CopyEngineCuda> engine,
                       CopyEngineCuda::Make(**CudaDriver::Find(), {}));
  std::fill(in(), in() + kBytes, std::byte{1});
  const CopyEvent good = engine->Copy(CopyStream::kFetch, device_, in(), kBytes, {});
  // Beyond what is registered, and what is allocated.
  const CopyEvent bad = engine->Copy(CopyStream::kFetch, device_, in(), 4 * kBytes, {});
  engine->Wait(bad);
  EXPECT_TRUE(engine->Done(good));
  const absl::Status first = engine->status();
  EXPECT_THAT(std::string(first.message()), ::testing::HasSubstr("cudaMemcpyAsync"));
  std::fill(out(), out() + kBytes, std::byte{2});
  engine->Wait(engine->Copy(CopyStream::kEvict, out(), device_, kBytes, bad));
  EXPECT_EQ(out()[0], std::byte{2});
  EXPECT_EQ(engine->status(), first);
}

}  // namespace
}  // namespace gemini::client
