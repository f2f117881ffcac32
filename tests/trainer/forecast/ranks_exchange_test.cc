// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/ranks_exchange.h"

#include <string>

#include "gemini/device_shortage.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "trainer/forecast/trace_exchange.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

RanksRequest SomeRequest() {
  RanksRequest request = {
      .num_ranks = 4,
      .run = {},
      .task = {.name = "sequence-classification", .labels = TaskSpec{.num_labels = 7}},
      .rates = {.compute = {.flops_per_second = 1.0 / 3e-11,
                            .attention_flops_per_second = 1.0 / 7e-11,
                            .memory_bytes_per_second = 7e9,
                            .kernel_ns = 4001},
                .link = {.latency_seconds = 1e-5, .bytes_per_second = 3e9},
                .sum_bytes_per_second = 2e9,
                .copy_bytes_per_second = 5e9,
                .device_update_elements_per_second = 4e8,
                .update_elements_per_second = 6e8,
                .processors = 2}};
  request.run.steps = 1;  // A file of keys has some.
  request.run.sequence = 64;
  request.run.device_memory = 1 << 20;
  request.run.pipeline = 2;
  request.run.tensor = "1d";
  request.run.has_documents = true;
  return request;
}

TEST(RanksExchangeTest, ARequestComesThroughWithEveryKey) {
  const RanksRequest sent = SomeRequest();
  const std::string line = EncodeRanksRequest(sent);
  EXPECT_TRUE(IsRanksRequest(line));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  ASSERT_OK_AND_ASSIGN(const RanksRequest got, ParseRanksRequest(line));
  EXPECT_EQ(got.num_ranks, sent.num_ranks);
  EXPECT_EQ(got.run, sent.run);
  EXPECT_EQ(got.task.name, sent.task.name);
  EXPECT_EQ(got.task.labels, sent.task.labels);
  EXPECT_EQ(got.rates.compute.flops_per_second, sent.rates.compute.flops_per_second);
  EXPECT_EQ(got.rates.compute.attention_flops_per_second,
            sent.rates.compute.attention_flops_per_second);
  EXPECT_EQ(got.rates.compute.memory_bytes_per_second, sent.rates.compute.memory_bytes_per_second);
  EXPECT_EQ(got.rates.compute.kernel_ns, sent.rates.compute.kernel_ns);
  EXPECT_EQ(got.rates.link.latency_seconds, sent.rates.link.latency_seconds);
  EXPECT_EQ(got.rates.link.bytes_per_second, sent.rates.link.bytes_per_second);
  EXPECT_EQ(got.rates.sum_bytes_per_second, sent.rates.sum_bytes_per_second);
  EXPECT_EQ(got.rates.copy_bytes_per_second, sent.rates.copy_bytes_per_second);
  EXPECT_EQ(got.rates.device_update_elements_per_second,
            sent.rates.device_update_elements_per_second);
  EXPECT_EQ(got.rates.update_elements_per_second, sent.rates.update_elements_per_second);
  EXPECT_EQ(got.rates.processors, sent.rates.processors);
}

TEST(RanksExchangeTest, ARequestForATraceIsNone) {
  EXPECT_FALSE(IsRanksRequest(EncodeRequest({})));
  EXPECT_FALSE(IsRanksRequest("ranks"));
}

TEST(RanksExchangeTest, WhatIsNoRequestIsRefused) {
  const auto refused = [](RanksRequest request, const char* why) {
    EXPECT_THAT(ParseRanksRequest(EncodeRanksRequest(request)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  RanksRequest request = SomeRequest();
  request.num_ranks = 65;
  refused(request, "65 ranks: dry runs are of 2 to 64");
  request = SomeRequest();
  request.rates.processors = 0;
  refused(request, "a rate of 0");
  request = SomeRequest();
  request.rates.link.latency_seconds = -1;
  refused(request, "a latency of -1 seconds");
  request = SomeRequest();
  request.run.sequence = 0;
  refused(request, "sequences of 0 tokens");
  EXPECT_THAT(ParseRanksRequest(R"({"ranks": 2})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run")));
  EXPECT_THAT(ParseRanksRequest("[]"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RanksExchangeTest, AReplyComesThroughAndSoDoesARefusal) {
  const RanksForecast sent = {.last = {.end_seconds = 10,
                                       .computing_seconds = 1,
                                       .sharing_seconds = 2,
                                       .exchange_seconds = 3,
                                       .idle_seconds = 4},
                              .sent = {{"all-gather", {3, 4096}}, {"send", {1, 8}}},
                              .most_sent_bytes = 5000,
                              .host_bytes = 1 << 20,
                              .device_peak_bytes = 3 << 20};
  const auto line_of = [](const std::string& reply) {
    EXPECT_EQ(reply.find('\n'), reply.size() - 1);
    return reply.substr(0, reply.size() - 1);
  };
  ASSERT_OK_AND_ASSIGN(const RanksForecast got, ParseRanksReply(line_of(EncodeRanksReply(sent))));
  EXPECT_EQ(got.last.end_seconds, 10);
  EXPECT_EQ(got.last.computing_seconds, 1);
  EXPECT_EQ(got.last.sharing_seconds, 2);
  EXPECT_EQ(got.last.exchange_seconds, 3);
  EXPECT_EQ(got.last.idle_seconds, 4);
  EXPECT_EQ(got.sent, sent.sent);
  EXPECT_EQ(got.most_sent_bytes, sent.most_sent_bytes);
  EXPECT_EQ(got.host_bytes, sent.host_bytes);
  EXPECT_EQ(got.device_peak_bytes, sent.device_peak_bytes);
  EXPECT_THAT(ParseRanksReply(line_of(EncodeReply(absl::ResourceExhaustedError("too little")))),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("too little")));
  const absl::Status too_small = DeviceTooSmall({.who = "aten::mm", .chunk_bytes = 4097}, 4096);
  EXPECT_EQ(LeastDeviceBytes(ParseRanksReply(line_of(EncodeReply(too_small))).status()), 4097);
  EXPECT_THAT(ParseRanksReply(R"({"gemini_trace": "0.0.1"})"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of Gemini 0.0.1")));
  EXPECT_THAT(ParseRanksReply("{}"), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::trainer
