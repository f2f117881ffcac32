// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/moved_bytes.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/policies/planner/random_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

constexpr int64_t kChunk = kTestChunkBytes;

// Frozen tensors of one chunk each, used in the order given, an operator each.
Trace Uses(const std::vector<int32_t>& order) {
  Trace trace;
  trace.tensors.assign(1 + *std::max_element(order.begin(), order.end()),
                       {kChunk, TensorGroup::kFrozen, 0});
  for (const int32_t tensor : order) {
    trace.operators.push_back({static_cast<int32_t>(trace.uses.size()), 1, 0, 0});
    trace.uses.push_back({.tensor = tensor});
  }
  return trace;
}

TEST(MovedBytesTest, AnLruOfKSlotsMissesEveryUseOfACircleOfMore) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Uses({0, 1, 2, 3}), kChunk));
  EXPECT_THAT(SimulateLru(trace, 3 * kChunk), IsOkAndHolds(MovedBytes{4 * kChunk, 0}));
  EXPECT_THAT(SimulateLru(trace, 4 * kChunk), IsOkAndHolds(MovedBytes{0, 0}));
}

TEST(MovedBytesTest, TheFewestOfACircleIsTheMeanOfManyRounds) {
  // Farthest next use misses 3 of 6: a plan, which is the same every round, 2 of 3.
  ASSERT_OK_AND_ASSIGN(const RangeTrace three, PackTrace(Uses({0, 1, 2}), kChunk));
  EXPECT_THAT(FewestBytes(three, 2 * kChunk), IsOkAndHolds(MovedBytes{2 * kChunk, 0}));
  // There and back: two of four stay at each turn.
  ASSERT_OK_AND_ASSIGN(const RangeTrace back, PackTrace(Uses({0, 1, 2, 3, 3, 2, 1, 0}), kChunk));
  EXPECT_THAT(FewestBytes(back, 2 * kChunk), IsOkAndHolds(MovedBytes{4 * kChunk, 0}));
}

TEST(MovedBytesTest, BelowTheFloorBothNameTheOperator) {
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(Uses({0, 1}), kChunk));
  EXPECT_THAT(SimulateLru(trace, kChunk - 1), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(FewestBytes(trace, kChunk - 1), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(MovedBytesTest, GradientsLeaveAloneOrWithTheirRange) {
  Trace tensors;
  tensors.tensors = {{kChunk, TensorGroup::kTrainable, 0}, {100, TensorGroup::kTrainable, 0}};
  tensors.operators = {{0, 1, 0, 0}, {1, 1, 0, 0}, {2, 1, 0, 0}, {3, 0, 0, 0}};
  tensors.uses = {
      {.tensor = 0}, {.tensor = 1}, {.tensor = 0, .kind = ChunkKind::kGrad, .written = true}};
  tensors.gradient_outs = {{1, 0}, {1, 1}};
  tensors.updated = {0, 1};
  ASSERT_OK_AND_ASSIGN(const RangeTrace trace, PackTrace(tensors, kChunk));
  // Params 0 and 1 and the gradient of 0 come every round: the update makes all of them stale. The
  // gradient leaves by itself, and again after it was written to.
  EXPECT_THAT(SimulateLru(trace, 8 * kChunk),
              IsOkAndHolds(MovedBytes{3 * kChunk, kChunk + 100 + kChunk}));
  // Whatever the placement, once.
  EXPECT_THAT(FewestBytes(trace, 8 * kChunk), IsOkAndHolds(MovedBytes{3 * kChunk, kChunk + 100}));
}

// A slow, obvious LRU of whole ranges, without updates and gradients.
MovedBytes PlainLru(const RangeTrace& trace, int64_t device_bytes) {
  std::list<int32_t> order;  // The most recently used first.
  std::map<int32_t, bool> dirty;
  MovedBytes sum;
  for (int round = 0; round < 6; ++round) {
    if (round == 2) sum = {};
    for (int32_t p = 0; p < trace.num_positions(); ++p) {
      int64_t bytes = trace.operators[p].non_model_peak_bytes;
      std::vector<int32_t> used;
      for (const RangeUse& use : trace.uses_of(p)) {
        used.push_back(use.range);
        const auto found = std::find(order.begin(), order.end(), use.range);
        if (found == order.end()) {
          sum.fetch_bytes += trace.ranges[use.range].num_bundles * kChunk;
        } else {
          order.erase(found);
        }
      }
      order.insert(order.begin(), used.rbegin(), used.rend());
      const auto held = [&] {
        int64_t chunks = 0;
        for (const int32_t range : order) chunks += trace.ranges[range].num_bundles;
        return bytes + chunks * kChunk;
      };
      while (held() > device_bytes) {
        if (dirty[order.back()]) {
          sum.evict_bytes += trace.ranges[order.back()].num_bundles * kChunk;
        }
        dirty[order.back()] = false;
        order.pop_back();
      }
      for (const RangeUse& use : trace.uses_of(p)) dirty[use.range] |= use.written;
    }
  }
  return {sum.fetch_bytes / 4, sum.evict_bytes / 4};
}

TEST(MovedBytesTest, LruEqualsAPlainOneOnRandomRounds) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    RandomTraceOptions options = DrawOptions(seed, seed % 2 == 0);
    options.with_update = false;
    options.micro_batches = 1;
    options.buffers = 0.5;
    ASSERT_OK_AND_ASSIGN(const RangeTrace trace,
                         PackTrace(RandomTrace(options, seed).Make(), kChunk));
    const int64_t budget = 12 * kChunk + static_cast<int64_t>(seed % 7) * kChunk;
    const absl::StatusOr<MovedBytes> lru = SimulateLru(trace, budget);
    if (!lru.ok()) continue;  // Below its floor.
    EXPECT_EQ(*lru, PlainLru(trace, budget));
    EXPECT_LE(FewestBytes(trace, budget)->fetch_bytes, lru->fetch_bytes);
  }
}

}  // namespace
}  // namespace gemini::policies
