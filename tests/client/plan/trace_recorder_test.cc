// SPDX-License-Identifier: Apache-2.0
#include "client/plan/trace_recorder.h"

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

constexpr TensorUse kFirst = {.tensor = 0, .kind = ChunkKind::kParam, .written = false};
constexpr TensorUse kSecond = {.tensor = 1, .kind = ChunkKind::kGrad, .written = true};

void RecordRound(TraceRecorder& recorder) {
  recorder.Begin();
  recorder.AddOperator({kFirst, kSecond});
  recorder.AddGradientOut(0, 1);
  recorder.AddOperator({kSecond});
  recorder.AddOperator({});
}

TEST(TraceRecorderTest, WritesDownWhatHappened) {
  TraceRecorder recorder;
  RecordRound(recorder);
  const Trace& trace = recorder.trace();
  ASSERT_EQ(trace.num_positions(), 3);
  EXPECT_EQ(trace.uses_of(0).size(), 2u);
  EXPECT_EQ(trace.uses_of(1)[0], kSecond);
  EXPECT_TRUE(trace.uses_of(2).empty());
  EXPECT_EQ(trace.gradient_outs, (std::vector<GradientOut>{{.position = 0, .tensor = 1}}));
}

TEST(TraceRecorderTest, AWriteThatShowsAtTheOperatorsEndIsAddedToItsUse) {
  TraceRecorder recorder;
  RecordRound(recorder);
  recorder.MarkWritten(0, {kFirst});
  EXPECT_TRUE(recorder.trace().uses_of(0)[0].written);
  EXPECT_TRUE(recorder.trace().uses_of(1)[0].written);
  EXPECT_EQ(recorder.trace().uses.size(), 3u);
}

TEST(TraceRecorderTest, ARoundLikeTheOneBeforeIsTheSame) {
  TraceRecorder recorder;
  RecordRound(recorder);
  const Trace first = recorder.trace();
  const TensorUse* const uses = recorder.trace().uses.data();
  RecordRound(recorder);
  EXPECT_EQ(recorder.trace(), first);
  EXPECT_EQ(recorder.trace().uses.data(), uses);  // In the same memory.
}

TEST(TraceRecorderTest, ARoundThatLeftItsPlanBeginsAsTraced) {
  TraceRecorder recorder;
  RecordRound(recorder);
  const Trace known = recorder.trace();
  for (int32_t positions = 0; positions <= 3; ++positions) {
    recorder.Begin();
    recorder.AddGradientOut(0, 1);
    recorder.BeginWith(known, positions);
    EXPECT_EQ(recorder.trace().num_positions(), positions);
    EXPECT_EQ(recorder.trace().gradient_outs, known.gradient_outs);
    recorder.AddOperator({kFirst});
    EXPECT_EQ(recorder.trace().uses_of(positions)[0], kFirst);
    for (int32_t i = 0; i < positions; ++i) {
      EXPECT_EQ(recorder.trace().uses_of(i), known.uses_of(i));
    }
  }
}

}  // namespace
}  // namespace gemini::client
