// SPDX-License-Identifier: Apache-2.0
#include "tools/perfetto_trace.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gemini/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::tools {
namespace {

using ::testing::UnorderedElementsAre;

std::vector<nlohmann::json> WithPhase(const nlohmann::json& trace, const std::string& phase) {
  std::vector<nlohmann::json> found;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

class PerfettoTraceTest : public ::testing::Test {
 protected:
  const ChunkId gradient_ = ChunkOf(BundleId(7), ChunkKind::kGrad);
  const std::vector<TimelineProcess> processes_ = {
      {"actual",
       {{.lane = TimelineLane::kOperator,
         .cause = StallCause::kUpdate,
         .subject = 3,
         .begin_ns = 9'000,
         .end_ns = 12'000,
         .stall_ns = 4'000,
         .size_bytes = 640},
        {.lane = TimelineLane::kEvict,
         .subject = static_cast<uint32_t>(gradient_.value()),
         .begin_ns = 10'000,
         .end_ns = 15'500,
         .size_bytes = 4096}}},
      {"planned", {{.lane = TimelineLane::kOperator, .begin_ns = 0, .end_ns = 2'000}}}};
  const nlohmann::json trace_ = PerfettoTrace(processes_);
};

TEST_F(PerfettoTraceTest, EachEventHasItsTimeFromTheProcesssFirst) {
  const std::vector<nlohmann::json> spans = WithPhase(trace_, "X");
  ASSERT_EQ(spans.size(), 4);
  EXPECT_EQ(spans[0].at("name"), "wait: update");
  EXPECT_EQ(spans[0].at("ts"), 0.0);
  EXPECT_EQ(spans[0].at("dur"), 4.0);
  EXPECT_EQ(spans[1].at("name"), "operator 3");
  EXPECT_EQ(spans[1].at("ts"), 4.0);
  EXPECT_EQ(spans[1].at("dur"), 3.0);
  EXPECT_EQ(spans[2].at("name"), "grad 7");
  EXPECT_EQ(spans[2].at("ts"), 5.0);
  EXPECT_EQ(spans[2].at("dur"), 5.5);
  EXPECT_EQ(spans[2].at("args").at("bytes"), 4096);
  EXPECT_EQ(spans[3].at("name"), "operator 0");
  EXPECT_EQ(spans[3].at("ts"), 0.0);
}

TEST_F(PerfettoTraceTest, EveryRowHasANameAndEveryOperatorACounter) {
  std::vector<std::string> processes;
  std::set<std::string> rows;
  for (const nlohmann::json& event : WithPhase(trace_, "M")) {
    const std::string name = event.at("args").at("name");
    if (event.at("name") == "process_name") {
      processes.push_back(name);
    } else {
      rows.insert(name);
    }
  }
  EXPECT_THAT(processes, ::testing::ElementsAre("actual", "planned"));
  EXPECT_THAT(rows, UnorderedElementsAre("operator", "fetch", "evict", "update", "nvme read",
                                         "nvme write", "device update"));
  const std::vector<nlohmann::json> counters = WithPhase(trace_, "C");
  ASSERT_EQ(counters.size(), 2);
  EXPECT_EQ(counters[0].at("args").at("bytes"), 640);
}

TEST(PerfettoTraceRowsTest, WhatOverlapsInALaneGetsRowsOfTheSameName) {
  const auto read = [](int64_t begin_ns, int64_t end_ns) {
    return TimelineEvent{.lane = TimelineLane::kNvmeRead, .begin_ns = begin_ns, .end_ns = end_ns};
  };
  const nlohmann::json trace =
      PerfettoTrace({{"actual", {read(4'000, 6'000), read(0, 5'000), read(6'000, 7'000)}}});
  std::map<double, int> rows;
  for (const nlohmann::json& event : WithPhase(trace, "X")) {
    rows[event.at("ts")] = event.at("tid");
  }
  ASSERT_EQ(rows.size(), 3);
  EXPECT_NE(rows[0.0], rows[4.0]);
  EXPECT_EQ(rows[0.0], rows[6.0]);
  std::map<int, std::string> names;
  for (const nlohmann::json& event : WithPhase(trace, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names[rows[0.0]], "nvme read");
  EXPECT_EQ(names[rows[4.0]], "nvme read");
}

TEST(PerfettoTraceSpacesTest, ChunksOfOtherSpacesThanTheFirstNameThem) {
  const nlohmann::json trace =
      PerfettoTrace({{"actual",
                      {{.lane = TimelineLane::kUpdate, .space = 0, .begin_ns = 0, .end_ns = 1},
                       {.lane = TimelineLane::kFetch, .space = 1, .begin_ns = 1, .end_ns = 2},
                       {.lane = TimelineLane::kFetch, .space = 9, .begin_ns = 2, .end_ns = 3}},
                      {{0, "job"}, {1, "job.activations"}}}});
  const std::vector<nlohmann::json> spans = WithPhase(trace, "X");
  ASSERT_EQ(spans.size(), 3);
  EXPECT_EQ(spans[0].at("name"), "bundle 0");
  EXPECT_EQ(spans[1].at("name"), "param 0 of job.activations");
  EXPECT_EQ(spans[2].at("name"), "param 0 of space 9");
}

TEST(EmptyPerfettoTraceTest, NothingIsAFileAllTheSame) {
  EXPECT_TRUE(PerfettoTrace({}).at("traceEvents").empty());
}

}  // namespace
}  // namespace gemini::tools
