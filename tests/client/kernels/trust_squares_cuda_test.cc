// SPDX-License-Identifier: Apache-2.0
// The code of the CUDA kernel, run on the host: what is left to the GPU is its own arithmetic.
#include "client/kernels/trust_squares_cuda.h"

#include <algorithm>

#include "client/kernels/lane_cuda.h"
#include "client/kernels/update_rules.h"
#include "client/kernels/update_scalars.h"
#include "gtest/gtest.h"
#include "tests/client/kernels/random_trust_run.h"

namespace gemini::client {
namespace {

// A thread for each lane of a block, one after another.
template <typename Rule>
TrustSquares SquaresOfThreads(const TrustRun& run) {
  const Rule rule(ScalarsOf(run.settings));
  const TrustStreams streams = TrustStreamsOf(run);
  TrustSquares squares;
  for (int64_t begin = 0; begin < run.count; begin += kNormBlockElements) {
    const int64_t end = std::min(begin + kNormBlockElements, run.count);
    double param = 0, direction = 0;
    for (int64_t lane = 0; lane < kNormLanes; ++lane) {
      double param_sum = 0, direction_sum = 0;
      for (int64_t i = begin + lane; i < end; i += kNormLanes) {
        AddTrustSquares(rule, streams, i, param_sum, direction_sum);
      }
      param += param_sum;
      direction += direction_sum;
    }
    squares.param.push_back(param);
    squares.direction.push_back(direction);
  }
  return squares;
}

TEST(TrustSquaresCudaTest, AreThoseOfTheHostInEveryFormat) {
  WorkerTeam team(3);
  for (const ElementType element : kAllElementTypes) {
    for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars}) {
      for (const bool has_moments : {true, false}) {
        SCOPED_TRACE(std::string(ElementTypeName(element)) + OptimizerKindName(kind).data());
        const RandomTrustRun random({.element = element, .optimizer = kind}, has_moments,
                                    /*seed=*/5);
        const TrustRun& run = random.run();
        const TrustSquares squares = kind == OptimizerKind::kLamb
                                         ? SquaresOfThreads<LambRule<LaneCuda>>(run)
                                         : SquaresOfThreads<LarsRule<LaneCuda>>(run);
        TrustSquares expected;
        AppendRunSquares(absl::MakeConstSpan(&run, 1), team, expected);
        EXPECT_EQ(squares.param, expected.param);
        EXPECT_EQ(squares.direction, expected.direction);
        EXPECT_GT(std::ranges::min(expected.param), 0);
      }
    }
  }
}

// Parts of a run that end before its states go on in another chunk, where they do, and behind that.
TEST(TrustSquaresCudaTest, StreamsOfAPartAreThoseOfTheWholeFromThere) {
  for (const ElementType element : kAllElementTypes) {
    const RandomTrustRun random({.element = element, .optimizer = OptimizerKind::kLamb},
                                /*has_moments=*/true, /*seed=*/6);
    const TrustSquares whole = SquaresOfThreads<LambRule<LaneCuda>>(random.run());
    for (const int64_t first : {2, 96, 97, 150}) {
      TrustRun part = random.run();
      const int64_t skipped = first * kNormBlockElements;
      if (skipped >= part.count) continue;
      part.first += skipped;
      part.count -= skipped;
      const TrustSquares squares = SquaresOfThreads<LambRule<LaneCuda>>(part);
      EXPECT_TRUE(
          std::ranges::equal(squares.param, absl::MakeConstSpan(whole.param).subspan(first)))
          << first;
      EXPECT_TRUE(std::ranges::equal(squares.direction,
                                     absl::MakeConstSpan(whole.direction).subspan(first)))
          << first;
    }
  }
}

}  // namespace
}  // namespace gemini::client
