// SPDX-License-Identifier: Apache-2.0
// What a real session writes to its timeline, as the server reads it.
#include <algorithm>
#include <map>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/client/plan/planned_job.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

class SessionTimelineTest : public SessionFixture {
 protected:
  static absl::StatusOr<Reply> Ask(Connection& observer, const std::string& space, uint64_t first) {
    return observer.Call(
        wire::Body::ReadTimeline,
        [&](flatbuffers::FlatBufferBuilder& builder) {
          return wire::CreateReadTimelineDirect(builder, space.c_str(), first).Union();
        },
        wire::Body::TimelineReply);
  }
  std::vector<TimelineEvent> Read(const std::string& space) {
    const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
    std::vector<TimelineEvent> events;
    uint64_t next = 1, written = 1;
    while (next <= written) {
      const absl::StatusOr<Reply> reply = Ask(*observer, space, next);
      EXPECT_OK(reply);
      if (!reply.ok()) break;
      const auto& page = *reply->As<wire::TimelineReply>();
      written = page.written();
      next = page.next();
      for (const wire::TimelineEvent* event : *page.events()) {
        events.push_back({.lane = static_cast<TimelineLane>(event->lane()),
                          .cause = static_cast<StallCause>(event->cause()),
                          .space = event->space(),
                          .subject = event->subject(),
                          .begin_ns = event->begin_ns(),
                          .end_ns = event->end_ns(),
                          .stall_ns = event->stall_ns(),
                          .size_bytes = event->size_bytes()});
      }
    }
    return events;
  }
  static std::vector<TimelineEvent> Of(const std::vector<TimelineEvent>& events,
                                       TimelineLane lane) {
    std::vector<TimelineEvent> found;
    std::copy_if(events.begin(), events.end(), std::back_inserter(found),
                 [lane](const TimelineEvent& event) { return event.lane == lane; });
    return found;
  }
  static int64_t BytesOf(const std::vector<TimelineEvent>& events) {
    int64_t sum = 0;
    for (const TimelineEvent& event : events) sum += event.size_bytes;
    return sum;
  }
};

constexpr int32_t kTensors = 12;

// A step over the tensors forward and backward, each gradient leaving after its operator.
void RunStep(PlannedJob& job) {
  for (int32_t i = 0; i < kTensors; ++i) ASSERT_OK(job.Operator({{.tensor = i}}));
  for (int32_t i = kTensors - 1; i >= 0; --i) {
    ASSERT_OK(job.Operator({{.tensor = i}}));
    ASSERT_OK(job.Gradient(i));
  }
  ASSERT_OK(job.Update());
}

TEST_F(SessionTimelineTest, LanesSayWhatMovedWhenAndAgreeWithTheCounters) {
  constexpr int kSteps = 4;
  constexpr int64_t kOperators = 2 * kTensors + 1;
  // Room for a third of the parameters on DEVICE, and for less than all in HOST.
  OpenSession(/*device_slots=*/4, /*host_slots=*/20, /*nvme_slots=*/60);
  ASSERT_NE(session_, nullptr);
  LocalPlans plans(kTestChunkBytes);
  std::vector<TimelineEvent> events;
  ResidencyStats stats;
  int64_t nvme_read = 0, nvme_written = 0;
  {
    PlannedJob job(*session_, std::vector<TracedTensor>(kTensors, {.size_bytes = kTestChunkBytes}),
                   &plans, 20, 60);
    for (int step = 0; step < kSteps; ++step) RunStep(job);
    ASSERT_OK(job.FinishUpdates());
    job.phases().AwaitPlannedMoves();
    stats = session_->residency().stats();
    nvme_read = job.store().stored_bytes().nvme_read_bytes;
    nvme_written = job.store().stored_bytes().nvme_written_bytes;
    // An update is shown a moment after its commit.
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    do {
      events = Read("job");
    } while (Of(events, TimelineLane::kUpdate).size() < kSteps * kTensors &&
             absl::Now() < deadline);
  }
  EXPECT_EQ(BytesOf(Of(events, TimelineLane::kFetch)), stats.fetch_bytes);
  EXPECT_EQ(BytesOf(Of(events, TimelineLane::kEvict)), stats.evict_bytes);
  EXPECT_EQ(BytesOf(Of(events, TimelineLane::kNvmeRead)), nvme_read);
  EXPECT_EQ(BytesOf(Of(events, TimelineLane::kNvmeWrite)), nvme_written);
  EXPECT_GT(stats.fetch_bytes, 0);
  EXPECT_GT(stats.evict_bytes, 0);
  EXPECT_GT(nvme_read, 0);
  EXPECT_GT(nvme_written, 0);

  // Each bundle once a step.
  std::map<uint32_t, int> updates;
  for (const TimelineEvent& event : Of(events, TimelineLane::kUpdate)) ++updates[event.subject];
  EXPECT_EQ(updates.size(), kTensors);
  for (const auto& [bundle, count] : updates) EXPECT_EQ(count, kSteps) << "bundle " << bundle;

  // Positions follow each other and intervals do not overlap; the last one is not over yet.
  const std::vector<TimelineEvent> operators = Of(events, TimelineLane::kOperator);
  ASSERT_EQ(operators.size(), kSteps * kOperators - 1);
  int64_t stall_ns = 0;
  std::array<int64_t, kNumStallCauses> by_cause = {};
  for (size_t i = 0; i < operators.size(); ++i) {
    EXPECT_EQ(operators[i].subject, i % kOperators);
    EXPECT_LE(operators[i].begin_ns, operators[i].end_ns);
    EXPECT_LE(operators[i].size_bytes, session_->device_budget().budget_bytes());
    stall_ns += operators[i].stall_ns;
    by_cause[static_cast<size_t>(operators[i].cause)] += operators[i].stall_ns;
    if (i > 0) {
      EXPECT_GE(operators[i].begin_ns - operators[i].stall_ns, operators[i - 1].end_ns);
    }
  }
  EXPECT_GT(stall_ns, 0);
  EXPECT_LE(stall_ns, stats.stall_ns);
  // The first round waits for what it asks for, and for nothing planned.
  EXPECT_GT(by_cause[static_cast<size_t>(StallCause::kOnline)], 0);

  // Where a fetch is, its chunk is a parameter of the space; and it was there before its first use.
  const std::vector<TimelineEvent> fetches = Of(events, TimelineLane::kFetch);
  for (const TimelineEvent& event : fetches) {
    EXPECT_EQ(KindOf(ChunkId(event.subject)), ChunkKind::kParam);
    EXPECT_EQ(event.space, 0);
    EXPECT_LT(BundleOf(ChunkId(event.subject)).value(), kTensors);
  }
  // The very first operator waits for its chunk alone, at least as long as the copy takes. A wait
  // is shown from when the operator began, though a moment of its own may have come before it.
  const TimelineEvent& first = operators.front();
  EXPECT_GE(fetches.front().begin_ns, first.begin_ns - first.stall_ns);
  EXPECT_LE(fetches.front().end_ns, first.end_ns);
  EXPECT_GE(first.stall_ns, fetches.front().end_ns - fetches.front().begin_ns);
}

TEST_F(SessionTimelineTest, ChunksOfTwoSpacesAreToldApart) {
  OpenSession(/*device_slots=*/4, /*host_slots=*/20, 0);
  ASSERT_NE(session_, nullptr);
  for (uint16_t i = 0; i < 2; ++i) {
    ChunkStore* store = OpenSpace(i == 0 ? "one" : "two", 4, 8, 0);
    ASSERT_NE(store, nullptr);
    ASSERT_OK(CommitTag(*store, BundleId(2), ChunkKind::kParam, 0, 1));
    const RangeId range = session_->residency().AddRange(*store, BundleId(2), 1, ChunkKind::kParam);
    std::byte* address = nullptr;
    ASSERT_OK(session_->residency().Pin({&range, 1}, {&address, 1}));
    session_->residency().Unpin(range, false);
  }
  const std::vector<TimelineEvent> fetches = Of(Read("one"), TimelineLane::kFetch);
  ASSERT_EQ(fetches.size(), 2);
  EXPECT_EQ(fetches[0].subject, fetches[1].subject);
  EXPECT_EQ(fetches[0].space, 0);
  EXPECT_EQ(fetches[1].space, 1);
  const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
  ASSERT_OK_AND_ASSIGN(const Reply reply, Ask(*observer, "two", 0));
  const auto& spaces = *reply.As<wire::TimelineReply>()->spaces();
  ASSERT_EQ(spaces.size(), 2);
  EXPECT_EQ(spaces.Get(1)->index(), 1);
  EXPECT_EQ(spaces.Get(1)->name()->str(), "two");
}

TEST_F(SessionTimelineTest, ALinkIsShownForTheTimeThatACopyHasIt) {
  constexpr int64_t kRate = 64 * kTestChunkBytes;  // A chunk takes 1/64 s.
  const TierMap<int64_t> bytes = Bytes(4 * kTestChunkBytes, 20 * kTestChunkBytes, 0);
  SessionOptions options;
  options.want_bytes = options.floor_bytes = bytes;
  options.chunk_bytes = kTestChunkBytes;
  options.device_bandwidth = kRate;
  ASSERT_OK_AND_ASSIGN(session_, Session::Open(*server_->Connect(), options));
  ChunkStore* store = OpenSpace("slow", 4, 8, 0);
  ASSERT_NE(store, nullptr);
  std::vector<RangeId> ranges;
  for (int64_t i = 0; i < 3; ++i) {
    ASSERT_OK(CommitTag(*store, BundleId(i), ChunkKind::kParam, 0, i));
    ranges.push_back(session_->residency().AddRange(*store, BundleId(i), 1, ChunkKind::kParam));
  }
  std::vector<std::byte*> addresses(ranges.size());
  ASSERT_OK(session_->residency().Pin(ranges, absl::MakeSpan(addresses)));
  for (const RangeId range : ranges) session_->residency().Unpin(range, false);
  const std::vector<TimelineEvent> fetches = Of(Read("slow"), TimelineLane::kFetch);
  ASSERT_EQ(fetches.size(), 3);
  for (size_t i = 0; i < fetches.size(); ++i) {
    EXPECT_EQ(fetches[i].end_ns - fetches[i].begin_ns, 1'000'000'000 / 64);
    // Asked for at once, they follow each other without a gap.
    EXPECT_EQ(fetches[i].begin_ns, i == 0 ? fetches[i].begin_ns : fetches[i - 1].end_ns);
  }
}

TEST_F(SessionTimelineTest, ASpaceThatIsNotOpenIsRefusedByName) {
  const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
  EXPECT_THAT(Ask(*observer, "nobody", 0).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no space 'nobody'")));
}

}  // namespace
}  // namespace gemini::client
