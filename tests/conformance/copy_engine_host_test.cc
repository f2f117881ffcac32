// SPDX-License-Identifier: Apache-2.0
#include "client/copy/copy_engine_host.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tests/conformance/copy_engine_conformance.h"
#include "tests/conformance/operator_clock_conformance.h"

namespace gemini::client {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kGiBPerSecond = int64_t{1} << 30;

INSTANTIATE_TEST_SUITE_P(Host, CopyEngineConformance, ::testing::Values(CopyEngineCase{.make = [] {
                           return std::make_unique<CopyEngineHost>();
                         }}));
INSTANTIATE_TEST_SUITE_P(HostWithRates, CopyEngineConformance,
                         ::testing::Values(CopyEngineCase{.make = [] {
                           return std::make_unique<CopyEngineHost>(
                               std::array<int64_t, 2>{8 * kGiBPerSecond, 3 * kGiBPerSecond});
                         }}));

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Enqueues `count` copies on one stream and returns the seconds until all are done.
double TimeCopies(CopyEngine& engine, CopyStream stream, int count, int64_t size_bytes) {
  const std::vector<std::byte> source(static_cast<size_t>(size_bytes), std::byte{1});
  std::vector<std::byte> destination(static_cast<size_t>(size_bytes));
  const Clock::time_point start = Clock::now();
  CopyEvent last;
  for (int i = 0; i < count; ++i) {
    last = engine.Copy(stream, destination.data(), source.data(), size_bytes, {});
  }
  engine.Wait(last);
  return SecondsSince(start);
}

// The bound below is exact. That above leaves room for a late wake-up at the end, not for one a
// copy: at 50 us each they would add a fifth.
TEST(CopyEngineHostRate, ManyCopiesTakeTheirBytesByTheRate) {
  CopyEngineHost engine({kGiBPerSecond / 2, kGiBPerSecond / 4});
  for (const auto& [stream, rate] : {std::pair(CopyStream::kFetch, kGiBPerSecond / 2),
                                     std::pair(CopyStream::kEvict, kGiBPerSecond / 4)}) {
    constexpr int kCopies = 512;
    constexpr int64_t kBytes = 128 << 10;
    const double expected = static_cast<double>(kCopies * kBytes) / static_cast<double>(rate);
    double least = 1e9;
    // Another process may hold the processor for a while.
    for (int attempt = 0; attempt < 10 && least > expected * 1.05; ++attempt) {
      const double seconds = TimeCopies(engine, stream, kCopies, kBytes);
      EXPECT_GE(seconds, expected);
      least = std::min(least, seconds);
    }
    EXPECT_LE(least, expected * 1.05);
  }
}

TEST(CopyEngineHostRate, SmallCopiesArePacedToo) {
  CopyEngineHost engine({1 << 20, 0});
  const double seconds = TimeCopies(engine, CopyStream::kFetch, 16, 4096);
  EXPECT_GE(seconds, 16 * 4096.0 / (1 << 20));
  EXPECT_LE(TimeCopies(engine, CopyStream::kEvict, 16, 4096), seconds / 2);  // Has no rate.
}

TEST(CopyEngineHostRate, TimeWithoutCopiesIsNotSavedUp) {
  CopyEngineHost engine({kGiBPerSecond / 16, 0});
  constexpr int64_t kBytes = 1 << 20;
  constexpr double kExpected = 16.0 * kBytes / kGiBPerSecond;
  for (int i = 0; i < 4; ++i) {
    // Each begins when the one before is long done, as far as the link is concerned.
    EXPECT_GE(TimeCopies(engine, CopyStream::kFetch, 1, kBytes), kExpected);
  }
}

TEST(CopyEngineHostRate, BothDirectionsRunAtOnce) {
  CopyEngineHost engine({kGiBPerSecond / 8, kGiBPerSecond / 8});
  constexpr int64_t kBytes = 8 << 20;
  const std::vector<std::byte> source(kBytes, std::byte{1});
  std::vector<std::byte> fetched(kBytes), evicted(kBytes);
  const Clock::time_point start = Clock::now();
  const CopyEvent fetch =
      engine.Copy(CopyStream::kFetch, fetched.data(), source.data(), kBytes, {});
  const CopyEvent evict =
      engine.Copy(CopyStream::kEvict, evicted.data(), source.data(), kBytes, {});
  engine.Wait(fetch);
  engine.Wait(evict);
  constexpr double kOne = 8.0 * kBytes / kGiBPerSecond;
  EXPECT_GE(SecondsSince(start), kOne);
  EXPECT_LE(SecondsSince(start), 1.6 * kOne);  // One after the other: 2.
}

TEST(CopyEngineHostRate, DestructionDoesNotWaitForTheLink) {
  constexpr int64_t kBytes = 1 << 20;
  const std::vector<std::byte> source(kBytes, std::byte{3});
  std::vector<std::vector<std::byte>> destinations(4, std::vector<std::byte>(kBytes));
  const Clock::time_point start = Clock::now();
  {
    CopyEngineHost engine({1 << 10, 0});  // A thousand seconds a copy.
    for (std::vector<std::byte>& destination : destinations) {
      engine.Copy(CopyStream::kFetch, destination.data(), source.data(), kBytes, {});
    }
  }
  EXPECT_LT(SecondsSince(start), 100);
  for (const std::vector<std::byte>& destination : destinations) EXPECT_EQ(destination, source);
}

}  // namespace
}  // namespace gemini::client
