// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/meta_memory.h"

#include <cstdint>
#include <memory>
#include <thread>

#include "ATen/ATen.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

at::Tensor Bytes(int64_t size_bytes) {
  return at::empty({size_bytes}, at::device(at::kMeta).dtype(at::kByte));
}

TEST(MetaMemoryTest, CountsTheBytesOfTensors) {
  const MetaMemory memory(/*grain_bytes=*/1);
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 0);
  const at::Tensor fp32 = at::empty({3, 5}, at::device(at::kMeta).dtype(at::kFloat));
  EXPECT_EQ(memory.live_bytes(), 60);
  const at::Tensor bf16 = at::empty({3, 5}, at::device(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(memory.live_bytes(), 90);
}

TEST(MetaMemoryTest, CountsTheResultsOfOperators) {
  const MetaMemory memory(/*grain_bytes=*/1);
  const at::Tensor a = Bytes(100);
  const at::Tensor sum = a + a;
  EXPECT_EQ(memory.live_bytes(), 200);
}

TEST(MetaMemoryTest, ThePeakStaysWhenTensorsAreFreed) {
  MetaMemory memory(/*grain_bytes=*/1);
  at::Tensor kept = Bytes(100);
  { const at::Tensor freed = Bytes(1000); }
  EXPECT_EQ(memory.live_bytes(), 100);
  EXPECT_EQ(memory.peak_bytes(), 1100);
  const at::Tensor more = Bytes(10);
  EXPECT_EQ(memory.peak_bytes(), 1100);
  memory.ResetPeaks();
  EXPECT_EQ(memory.peak_bytes(), 110);
  kept.reset();
  EXPECT_EQ(memory.live_bytes(), 10);
  EXPECT_EQ(memory.peak_bytes(), 110);
}

TEST(MetaMemoryTest, RoundsEachTensorUpToTheGrain) {
  const MetaMemory memory(/*grain_bytes=*/64);
  at::Tensor one = Bytes(1);
  EXPECT_EQ(memory.live_bytes(), 64);
  const at::Tensor exact = Bytes(64);
  EXPECT_EQ(memory.live_bytes(), 128);
  const at::Tensor beyond = Bytes(65);
  EXPECT_EQ(memory.live_bytes(), 256);
  one.reset();
  EXPECT_EQ(memory.live_bytes(), 192);
}

TEST(MetaMemoryTest, CountsATensorAndItsViewsOnce) {
  const MetaMemory memory(/*grain_bytes=*/1);
  at::Tensor whole = Bytes(100);
  at::Tensor view = whole.view({10, 10}).transpose(0, 1).narrow(0, 2, 3);
  EXPECT_EQ(memory.live_bytes(), 100);
  whole.reset();
  EXPECT_EQ(memory.live_bytes(), 100) << "the view keeps the bytes";
  view.reset();
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 100);
}

TEST(MetaMemoryTest, TensorsWithoutElementsCountNothing) {
  const MetaMemory memory(/*grain_bytes=*/64);
  const at::Tensor none = at::empty({0, 7}, at::device(at::kMeta));
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 0);
}

TEST(MetaMemoryTest, TensorsOfOtherDevicesCountNothing) {
  const MetaMemory memory(/*grain_bytes=*/1);
  const at::Tensor on_cpu = at::empty({100});
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(MetaMemoryTest, CountsMemoryThatIsNoTensors) {
  MetaMemory memory(/*grain_bytes=*/64);
  const at::Tensor tensor = Bytes(64);
  memory.Add(100);
  EXPECT_EQ(memory.live_bytes(), 164);
  memory.Add(-100);
  EXPECT_EQ(memory.live_bytes(), 64);
  EXPECT_EQ(memory.peak_bytes(), 164);
}

TEST(MetaMemoryTest, CountsNothingThatIsMadeDuringAPause) {
  const MetaMemory memory(/*grain_bytes=*/1);
  at::Tensor before = Bytes(100);
  at::Tensor during;
  {
    const MetaMemory::Pause pause;
    during = Bytes(1000);
    EXPECT_EQ(memory.live_bytes(), 100);
    before.reset();
    EXPECT_EQ(memory.live_bytes(), 0) << "what was counted before is freed";
  }
  const at::Tensor after = Bytes(10);
  EXPECT_EQ(memory.live_bytes(), 10);
  during.reset();
  EXPECT_EQ(memory.live_bytes(), 10);
  EXPECT_EQ(memory.peak_bytes(), 100);
}

TEST(MetaMemoryTest, TheInnerOneCountsUntilItIsGone) {
  const MetaMemory outer(/*grain_bytes=*/1);
  at::Tensor of_outer = Bytes(100);
  at::Tensor of_inner;
  {
    const MetaMemory inner(/*grain_bytes=*/64);
    of_inner = Bytes(10);
    EXPECT_EQ(inner.live_bytes(), 64);
    EXPECT_EQ(outer.live_bytes(), 100);
    of_outer.reset();
    EXPECT_EQ(inner.live_bytes(), 64);
    EXPECT_EQ(outer.live_bytes(), 0) << "each is told what it counted";
  }
  const at::Tensor again = Bytes(7);
  EXPECT_EQ(outer.live_bytes(), 7);
  of_inner.reset();
  EXPECT_EQ(outer.live_bytes(), 7);
}

TEST(MetaMemoryTest, TensorsMayOutliveIt) {
  auto memory = std::make_unique<MetaMemory>(/*grain_bytes=*/1);
  at::Tensor tensor = Bytes(100);
  at::Tensor view = tensor.view({10, 10});
  memory.reset();
  const at::Tensor uncounted = Bytes(10);
  const MetaMemory next(/*grain_bytes=*/1);
  tensor.reset();
  view.reset();
  EXPECT_EQ(next.live_bytes(), 0);
}

TEST(MetaMemoryTest, OtherThreadsCountForThemselves) {
  const MetaMemory memory(/*grain_bytes=*/1);
  at::Tensor uncounted;
  std::thread([&] {
    uncounted = Bytes(100);
    const MetaMemory theirs(/*grain_bytes=*/1);
    const at::Tensor counted = Bytes(10);
    EXPECT_EQ(theirs.live_bytes(), 10);
  }).join();
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 0);
}

TEST(MetaMemoryTest, OtherThreadsMayFree) {
  const MetaMemory memory(/*grain_bytes=*/1);
  at::Tensor tensor = Bytes(100);
  std::thread([&] { tensor.reset(); }).join();
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(MetaMemoryTest, WhatIsSetAsideIsNotNeeded) {
  MetaMemory memory(/*grain_bytes=*/1);
  memory.Add(100);
  memory.SetAside(100);
  memory.ResetPeaks();
  memory.Add(30);
  EXPECT_EQ(memory.peak_bytes(), 130);
  EXPECT_EQ(memory.needed_peak_bytes(), 30);
  memory.Add(-100);
  memory.SetAside(-100);
  memory.Add(20);
  EXPECT_EQ(memory.live_bytes(), 50);
  EXPECT_EQ(memory.peak_bytes(), 130);
  EXPECT_EQ(memory.needed_peak_bytes(), 50);
}

}  // namespace
}  // namespace gemini::trainer
