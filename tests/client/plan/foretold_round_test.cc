// SPDX-License-Identifier: Apache-2.0
// Rounds whose trace is foretold, and the room that it asks plans to leave.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/plan/phase_tracker.h"
#include "tests/client/plan/phase_tracker_fixture.h"

namespace gemini::client {
namespace {

using ::testing::Each;

constexpr int64_t kChunk = kTestChunkBytes;

// The trace of a round of a job of 4 tensors, which has ended.
class ForetoldRoundTest : public PhaseTrackerTest {
 protected:
  Trace RecordedTrace() {
    LocalPlans plans(kChunk);
    Trace trace;
    Open(4, /*device_slots=*/6, &plans);
    if (!HasFatalFailure()) {
      Step();
      trace = *job_->phases().TraceOf("train");
    }
    job_.reset();
    session_.reset();
    return trace;
  }
};

TEST_F(ForetoldRoundTest, AForetoldRoundFollowsAPlanAndItsPeaksBecomeThoseThatAreMeasured) {
  Trace trace = RecordedTrace();
  if (HasFatalFailure()) return;
  const int64_t peak_bytes = trace.operators[5].non_model_peak_bytes;
  trace.operators[5].non_model_peak_bytes += 1000;
  Trace other = trace;
  other.tensors[0].size_bytes += 1;  // Of another model.
  for (const bool is_of_this : {true, false}) {
    LocalPlans later(kChunk);
    job_.reset();
    session_.reset();
    Open(4, /*device_slots=*/6, &later);
    if (HasFatalFailure()) return;
    job_->phases().Foretell(is_of_this ? trace : other);
    Step();
    EXPECT_EQ(stats().planned_rounds, is_of_this ? 1 : 0);
    Step();
    EXPECT_EQ(stats().planned_rounds, is_of_this ? 2 : 1);
    EXPECT_EQ(all_divergences(), 0);
    ASSERT_OK_AND_ASSIGN(const Trace measured, job_->phases().TraceOf("train"));
    EXPECT_EQ(measured.operators[5].non_model_peak_bytes, peak_bytes);
  }
}

TEST_F(ForetoldRoundTest, ARoundThatIsNotAsForetoldIsLearntAndPlanned) {
  Trace trace = RecordedTrace();
  if (HasFatalFailure()) return;
  std::swap(trace.uses[1].tensor, trace.uses[2].tensor);
  LocalPlans later(kChunk);
  Open(4, /*device_slots=*/6, &later);
  if (HasFatalFailure()) return;
  job_->phases().Foretell(trace);
  Step();
  EXPECT_EQ(stats().planned_rounds, 0);
  EXPECT_EQ(all_divergences(), 1);
  Step();
  EXPECT_EQ(stats().planned_rounds, 1);
}

TEST_F(ForetoldRoundTest, AForetoldRoundThatNoPlanFitsIsRecorded) {
  class RefusesOnce : public LocalPlans {
   public:
    using LocalPlans::LocalPlans;
    absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override {
      if (!std::exchange(has_refused_, true)) return absl::ResourceExhaustedError("too large");
      return LocalPlans::MakePlan(trace, device_bytes);
    }

   private:
    bool has_refused_ = false;
  };
  const Trace trace = RecordedTrace();
  if (HasFatalFailure()) return;
  RefusesOnce later(kChunk);
  Open(4, /*device_slots=*/6, &later);
  if (HasFatalFailure()) return;
  job_->phases().Foretell(trace);
  Step();
  EXPECT_EQ(stats().planned_rounds, 0);
  Step();
  EXPECT_EQ(stats().planned_rounds, 1);
}

// The room is asked for beside the peaks, which stay what was measured.
TEST_F(ForetoldRoundTest, PlansAreAskedToLeaveTheRoomThatWasForetold) {
  class Watched : public LocalPlans {
   public:
    using LocalPlans::LocalPlans;
    absl::StatusOr<Plan> MakePlan(const Trace& trace, int64_t device_bytes) override {
      rooms.push_back(trace.room_bytes);
      peaks.push_back(trace.operators[5].non_model_peak_bytes);
      return LocalPlans::MakePlan(trace, device_bytes);
    }
    std::vector<std::vector<int64_t>> rooms;
    std::vector<int64_t> peaks;
  };
  Trace trace = RecordedTrace();
  if (HasFatalFailure()) return;
  const int64_t peak_bytes = trace.operators[5].non_model_peak_bytes;
  // The second is more than DEVICE has: rounds are planned without it.
  for (const int64_t room_bytes : {peak_bytes + 100, int64_t{1} << 40}) {
    trace.room_bytes.assign(trace.operators.size(), 0);
    trace.room_bytes[5] = room_bytes;
    Watched later(kChunk);
    job_.reset();
    session_.reset();
    Open(4, /*device_slots=*/6, &later);
    if (HasFatalFailure()) return;
    job_->phases().Foretell(trace);
    constexpr int kRounds = 8;  // Behind some of which the plan is made anew.
    for (int round = 0; round < kRounds; ++round) Step();
    EXPECT_EQ(stats().planned_rounds, kRounds);
    ASSERT_GE(later.rooms.size(), 2u);
    EXPECT_THAT(later.rooms, Each(trace.room_bytes));
    EXPECT_THAT(later.peaks, Each(peak_bytes));
    ASSERT_OK_AND_ASSIGN(const Trace measured, job_->phases().TraceOf("train"));
    EXPECT_EQ(measured.room_bytes, trace.room_bytes);
  }
}

TEST_F(ForetoldRoundTest, TheRoomIsOfTracesOfAsManyOperators) {
  Trace trace = RecordedTrace();
  if (HasFatalFailure()) return;
  trace.room_bytes.assign(trace.operators.size(), 7);
  PlannedPhase phase;
  Trace foretold = trace;
  phase.Foretell(foretold);
  Trace odd = trace;  // As of a round that left its plan in the middle.
  odd.room_bytes.clear();
  odd.gradient_outs.clear();
  EXPECT_THAT(phase.Keep(odd, Divergence::kOperator), IsOkAndHolds(true));
  EXPECT_EQ(phase.trace->room_bytes, trace.room_bytes);
  EXPECT_TRUE(odd.room_bytes.empty());  // It goes on as the recorder's.
  Trace longer = trace;
  longer.room_bytes.clear();
  longer.operators.insert(longer.operators.begin(), TracedOperator());
  EXPECT_THAT(phase.Keep(longer, Divergence::kOperator), IsOkAndHolds(true));
  EXPECT_TRUE(phase.trace->room_bytes.empty());
  EXPECT_THAT(phase.Keep(odd, Divergence::kOperator), IsOkAndHolds(true));
  EXPECT_EQ(phase.trace->room_bytes, trace.room_bytes);
}

TEST_F(ForetoldRoundTest, AKeptTraceComesBeforeAForetoldOneOfARoundLikeIt) {
  Trace trace = RecordedTrace();
  if (HasFatalFailure()) return;
  trace.operators[5].non_model_peak_bytes = 1000;
  PlannedPhase phase;
  phase.trace = trace;
  Trace like = trace;
  like.operators[5].non_model_peak_bytes = 1100;
  phase.Foretell(like);
  EXPECT_FALSE(phase.is_foretold);
  EXPECT_EQ(*phase.trace, trace);
  Trace larger = trace;  // As with a larger batch.
  larger.operators[5].non_model_peak_bytes = 2000;
  phase.Foretell(larger);
  EXPECT_TRUE(phase.is_foretold);
  EXPECT_EQ(phase.trace->operators[5].non_model_peak_bytes, 2000);
  // What a short job was foretold, and left, is no more than that.
  Trace same = *phase.trace;
  phase.is_foretold = false;
  phase.Foretell(same);
  EXPECT_TRUE(phase.is_foretold);
}

}  // namespace
}  // namespace gemini::client
