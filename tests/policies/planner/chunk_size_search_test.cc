// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/chunk_size_search.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/plan/spare_slots.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"
#include "tests/policies/block_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

Trace BlocksTrace() {
  return BlockTrace({.blocks = 6, .width = 256, .inner = 1024}, {.batch = 2, .sequence = 128}, {})
      .trace;
}

int64_t ParameterBytes(const Trace& trace) {
  int64_t sum = 0;
  for (const TracedTensor& tensor : trace.tensors) sum += tensor.size_bytes;
  return sum;
}

TierMap<int64_t> Budget(int64_t device_bytes) { return {{device_bytes, int64_t{1} << 50, 0}}; }

TEST(ChunkSizeSearchTest, TakesTheFastestLeanSizeAndOfEqualsTheLargest) {
  const Trace trace = BlocksTrace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(64 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  ASSERT_EQ(choice.tried.size(), 11u);
  int64_t leanest = INT64_MAX;
  for (const TriedChunkSize& tried : choice.tried) {
    if (tried.status.ok()) leanest = std::min(leanest, tried.host_bytes);
  }
  ASSERT_LT(leanest, INT64_MAX);
  int64_t fastest = INT64_MAX;
  for (const TriedChunkSize& tried : choice.tried) {
    if (!tried.status.ok() || tried.host_bytes > leanest + kHostTieBytes) continue;
    fastest = std::min(fastest, tried.prediction.round_ns);
  }
  EXPECT_LE(static_cast<double>(choice.plan.prediction.round_ns),
            static_cast<double>(fastest) * (1 + kChunkSizeTie));
  for (const TriedChunkSize& tried : choice.tried) {
    if (!tried.status.ok() || tried.host_bytes > leanest + kHostTieBytes ||
        tried.chunk_bytes <= choice.plan.chunk_bytes) {
      continue;
    }
    EXPECT_GT(static_cast<double>(tried.prediction.round_ns),
              static_cast<double>(fastest) * (1 + kChunkSizeTie))
        << tried.chunk_bytes;
  }
}

TEST(ChunkSizeSearchTest, GivesThePlanThatThePlannerGivesForThatSize) {
  const Trace trace = BlocksTrace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(64 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, choice.plan.chunk_bytes));
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       MakePlan({packed, inputs.budget_bytes, inputs.costs, inputs.policy}));
  EXPECT_EQ(choice.plan, plan);
}

TEST(ChunkSizeSearchTest, ALatencyForEveryCopyMakesChunksLarger) {
  const Trace trace = BlocksTrace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(64 * kMiB)};
  inputs.costs.copy_latency_ns = 0;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice without, SearchChunkSize(inputs));
  inputs.costs.copy_latency_ns = 5'000'000;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice with, SearchChunkSize(inputs));
  EXPECT_GT(with.plan.chunk_bytes, without.plan.chunk_bytes);
}

TEST(ChunkSizeSearchTest, LeavesOutSizesOfTooManyBundles) {
  const Trace trace = BlocksTrace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(64 * kMiB)};
  inputs.max_bundles = ParameterBytes(trace) / kMiB;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  EXPECT_EQ(choice.tried.front().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(choice.plan.chunk_bytes, kMiB);
}

TEST(ChunkSizeSearchTest, CountsWhatIsNoTensors) {
  const Trace trace = BlocksTrace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(256 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  for (const TriedChunkSize& tried : choice.tried) {
    EXPECT_EQ(tried.num_bundles * tried.chunk_bytes, ParameterBytes(trace) + tried.padding_bytes)
        << tried.chunk_bytes;
    EXPECT_GE(tried.padding_bytes, 0);
  }
}

// Width 1600, as of GPT-2's largest: its matrices are 1,250 to 5,000 pages, and fill no power of
// two.
Trace WideTrace() {
  const trainer::RoundShape round = {
      .batch = 1, .sequence = 64, .recompute = true, .element = ElementType::kBf16};
  return BlockTrace({.blocks = 10, .width = 1600, .inner = 6400}, round, {}).trace;
}

TEST(ChunkSizeSearchTest, PadsLittleWherePowersOfTwoPadMuch) {
  const Trace trace = WideTrace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(256 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  for (const TriedChunkSize& tried : choice.tried) {
    EXPECT_EQ(tried.chunk_bytes % kPageBytes, 0);
    if (!tried.status.ok()) continue;
    const int64_t end =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tried.chunk_bytes)));
    ASSERT_OK_AND_ASSIGN(const RangeTrace whole, PackTrace(trace, end));
    EXPECT_LE((ParameterBytes(trace) + tried.padding_bytes) * 7, whole.chunks_of_space[0] * end);
    if (tried.chunk_bytes != choice.plan.chunk_bytes) continue;
    EXPECT_LT(tried.padding_bytes * 1000, ParameterBytes(trace) * 3);
    EXPECT_LT(tried.host_bytes, ParameterBytes(trace) * 7 + 2 * kHostTieBytes);
  }
}

TEST(ChunkSizeSearchTest, CountsTheSpareSlotsInHost) {
  const Trace trace = WideTrace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(256 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  const StateFormat bf16 = {.element = ElementType::kBf16};
  for (const TriedChunkSize& tried : choice.tried) {
    if (!tried.status.ok()) continue;
    EXPECT_EQ(tried.host_bytes, (7 * tried.num_bundles + SpareSlots(bf16)) * tried.chunk_bytes);
  }
}

TEST(ChunkSizeSearchTest, MoreHostIsTakenForAStepThatIsMuchFaster) {
  const Trace trace = WideTrace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(256 * kMiB)};
  inputs.costs.copy_latency_ns = 5'000'000;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  int64_t leanest = INT64_MAX;
  for (const TriedChunkSize& tried : choice.tried) {
    if (tried.status.ok()) leanest = std::min(leanest, tried.host_bytes);
  }
  const auto chosen =
      std::ranges::find(choice.tried, choice.plan.chunk_bytes, &TriedChunkSize::chunk_bytes);
  EXPECT_GT(chosen->host_bytes, leanest + kHostTieBytes);
}

TEST(ChunkSizeSearchTest, WhenNothingFitsItSaysWhatTheLowestFloorIs) {
  const Trace trace = BlocksTrace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(kMiB)};
  EXPECT_THAT(SearchChunkSize(inputs), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(ChunkSizeSearchTest, RefusesSizesThatAreNone) {
  const Trace trace = BlocksTrace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(kGiB)};
  inputs.least_chunk_bytes = 3 * kMiB;
  EXPECT_THAT(SearchChunkSize(inputs),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("powers of two")));
  inputs.least_chunk_bytes = 128 * kMiB;
  EXPECT_THAT(SearchChunkSize(inputs), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::policies
