// SPDX-License-Identifier: Apache-2.0
#include "policies/chunk_size_search.h"

#include <algorithm>
#include <vector>

#include "gemini/byte_size.h"
#include "policies/planner.h"
#include "policies/range_trace.h"
#include "policies/transformer_trace.h"
#include "tests/status_matchers.h"

namespace gemini::policies {
namespace {

using ::testing::HasSubstr;

Trace Gpt2Trace() {
  const TransformerShape shape = {.num_layers = 6,
                                  .hidden = 256,
                                  .num_heads = 4,
                                  .inner = 1024,
                                  .vocabulary = 8192,
                                  .num_positions = 256,
                                  .embedding_size = 256};
  return MakeTransformerTrace(shape, {.batch = 2, .sequence = 128}, {})->trace;
}

int64_t ParameterBytes(const Trace& trace) {
  int64_t sum = 0;
  for (const TracedTensor& tensor : trace.tensors) sum += tensor.size_bytes;
  return sum;
}

TierMap<int64_t> Budget(int64_t device_bytes) { return {{device_bytes, int64_t{1} << 50, 0}}; }

TEST(ChunkSizeSearchTest, TakesTheFastestAndOfEqualsTheLargest) {
  const Trace trace = Gpt2Trace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(72 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  ASSERT_EQ(choice.tried.size(), 11u);
  int64_t fastest = INT64_MAX;
  for (const TriedChunkSize& tried : choice.tried) {
    if (tried.status.ok()) fastest = std::min(fastest, tried.prediction.round_ns);
  }
  ASSERT_LT(fastest, INT64_MAX);
  EXPECT_LE(static_cast<double>(choice.plan.prediction.round_ns),
            static_cast<double>(fastest) * (1 + kChunkSizeTie));
  for (const TriedChunkSize& tried : choice.tried) {
    if (!tried.status.ok() || tried.chunk_bytes <= choice.plan.chunk_bytes) continue;
    EXPECT_GT(static_cast<double>(tried.prediction.round_ns),
              static_cast<double>(fastest) * (1 + kChunkSizeTie))
        << tried.chunk_bytes;
  }
}

TEST(ChunkSizeSearchTest, GivesThePlanThatThePlannerGivesForThatSize) {
  const Trace trace = Gpt2Trace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(72 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  ASSERT_OK_AND_ASSIGN(const RangeTrace packed, PackTrace(trace, choice.plan.chunk_bytes));
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       MakePlan({packed, inputs.budget_bytes, inputs.costs, inputs.policy}));
  EXPECT_EQ(choice.plan, plan);
}

TEST(ChunkSizeSearchTest, ALatencyForEveryCopyMakesChunksLarger) {
  const Trace trace = Gpt2Trace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(72 * kMiB)};
  inputs.costs.copy_latency_ns = 0;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice without, SearchChunkSize(inputs));
  inputs.costs.copy_latency_ns = 5'000'000;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice with, SearchChunkSize(inputs));
  EXPECT_GT(with.plan.chunk_bytes, without.plan.chunk_bytes);
}

TEST(ChunkSizeSearchTest, LeavesOutSizesOfTooManyBundles) {
  const Trace trace = Gpt2Trace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(72 * kMiB)};
  inputs.max_bundles = ParameterBytes(trace) / kMiB;
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  EXPECT_EQ(choice.tried.front().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(choice.plan.chunk_bytes, kMiB);
}

TEST(ChunkSizeSearchTest, CountsWhatIsNoTensors) {
  const Trace trace = Gpt2Trace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(256 * kMiB)};
  ASSERT_OK_AND_ASSIGN(const ChunkSizeChoice choice, SearchChunkSize(inputs));
  for (const TriedChunkSize& tried : choice.tried) {
    EXPECT_EQ(tried.num_bundles * tried.chunk_bytes, ParameterBytes(trace) + tried.padding_bytes)
        << tried.chunk_bytes;
    EXPECT_GE(tried.padding_bytes, 0);
  }
}

TEST(ChunkSizeSearchTest, WhenNothingFitsItSaysWhatTheLowestFloorIs) {
  const Trace trace = Gpt2Trace();
  const ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(kMiB)};
  EXPECT_THAT(SearchChunkSize(inputs), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(ChunkSizeSearchTest, RefusesSizesThatAreNone) {
  const Trace trace = Gpt2Trace();
  ChunkSizeSearchInputs inputs = {.trace = trace, .budget_bytes = Budget(kGiB)};
  inputs.least_chunk_bytes = 3 * kMiB;
  EXPECT_THAT(SearchChunkSize(inputs),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("powers of two")));
  inputs.least_chunk_bytes = 128 * kMiB;
  EXPECT_THAT(SearchChunkSize(inputs), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::policies
