// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/trace_exchange.h"

#include <string>

#include "gemini/device_shortage.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

TraceRequest SomeRequest() {
  return {
      .round = {.train = false,
                .batch = 3,
                .sequence = 17,
                .micro_batches = 2,
                .recompute = true,
                .element = ElementType::kFp16,
                .optimizer = OptimizerKind::kLamb,
                .moments = MomentFormat::k8Bit,
                .states_on_nvme = true,
                .has_documents = true,
                .on_cpu = true},
      .rate = {.flops_per_second = 1.0 / 3e-13, .memory_bytes_per_second = 7e11, .kernel_ns = 4001},
      .task = {.name = "sequence-classification",
               .labels = TaskSpec{.problem = ProblemType::kMultiLabel, .num_labels = 7}}};
}

TraceReply SomeReply() {
  TraceReply reply = {"models/a (gpt2)", SomeRequest(), {}};
  Trace& trace = reply.made.trace;
  trace.phase = "train";
  trace.tensors = {{.size_bytes = 64}, {.size_bytes = 128}};
  trace.operators = {{0, 2, 5, 100}, {2, 0, 0, 0}};
  trace.uses = {{0, ChunkKind::kParam, false}, {1, ChunkKind::kParam, true}};
  trace.gradient_outs = {{0, 1}};
  trace.updated = {0, 1};
  reply.made.tensor_names = {"a.weight", "b.weight"};
  reply.made.operator_names = {"forward of a", "update"};
  reply.made.needs = {{90, 95}, {0, 0}};
  return reply;
}

TEST(TraceExchangeTest, ARequestComesThroughWithEveryKey) {
  const TraceRequest sent = SomeRequest();
  ASSERT_OK_AND_ASSIGN(const TraceRequest got, ParseRequest(EncodeRequest(sent)));
  EXPECT_EQ(got.round.train, sent.round.train);
  EXPECT_EQ(got.round.batch, sent.round.batch);
  EXPECT_EQ(got.round.sequence, sent.round.sequence);
  EXPECT_EQ(got.round.micro_batches, sent.round.micro_batches);
  EXPECT_EQ(got.round.recompute, sent.round.recompute);
  EXPECT_EQ(got.round.format(), sent.round.format());
  EXPECT_EQ(got.round.states_on_nvme, sent.round.states_on_nvme);
  EXPECT_EQ(got.round.has_documents, sent.round.has_documents);
  EXPECT_EQ(got.round.on_cpu, sent.round.on_cpu);
  EXPECT_EQ(got.rate.flops_per_second, sent.rate.flops_per_second);
  EXPECT_EQ(got.rate.memory_bytes_per_second, sent.rate.memory_bytes_per_second);
  EXPECT_EQ(got.rate.kernel_ns, sent.rate.kernel_ns);
  EXPECT_EQ(got.task.name, sent.task.name);
  EXPECT_EQ(got.task.labels, sent.task.labels);
}

TEST(TraceExchangeTest, KeysThatAreLeftOutKeepTheirDefaultsAndUnknownOnesAreRefused) {
  ASSERT_OK_AND_ASSIGN(const TraceRequest request, ParseRequest(R"({"batch": 4})"));
  EXPECT_EQ(request.round.batch, 4);
  EXPECT_EQ(request.round.sequence, 0);
  EXPECT_TRUE(request.round.train);
  EXPECT_EQ(request.task.name, "auto");
  EXPECT_FALSE(request.task.labels.has_value());
  const auto refused = [](absl::string_view line, const char* why) {
    EXPECT_THAT(ParseRequest(line), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused(R"({"bathc": 4})", "bathc");
  refused(R"({"batch": "four"})", "batch is no whole number");
  refused(R"({"batch": 2.5})", "batch is no whole number");
  refused(R"({"kernel_ns": 1e30})", "kernel_ns is no whole number");
  refused(R"({"precision": "fp8"})", "fp8");
  refused(R"({"optimizer": "adamax"})", "adamax");
  refused(R"({"task": 1})", "string");
  refused(R"({"num_labels": -1})", "num_labels is -1");
  refused(R"({"num_labels": 65537})", "expected 1 to 65536");
  refused(R"({"num_labels": 2, "problem_type": "ranking"})", "ranking");
  refused(R"({"problem_type": "regression"})", "num_labels is 0");
  refused("[]", "no JSON object");
  refused("{", "parse error");
  refused("", "parse error");
}

TEST(TraceExchangeTest, AReplyComesThroughWithItsNames) {
  const TraceReply sent = SomeReply();
  ASSERT_OK_AND_ASSIGN(const TraceReply got, ParseReply(EncodeReply(sent)));
  EXPECT_EQ(got.model, sent.model);
  EXPECT_EQ(got.request.round.batch, sent.request.round.batch);
  EXPECT_EQ(got.made.trace, sent.made.trace);
  EXPECT_EQ(got.made.tensor_names, sent.made.tensor_names);
  EXPECT_EQ(got.made.operator_names, sent.made.operator_names);
  EXPECT_EQ(got.made.needs, sent.made.needs);
}

TEST(TraceExchangeTest, ARefusedRequestKeepsItsStatus) {
  const absl::Status refused = absl::ResourceExhaustedError("too large: \"x\"\n");
  const absl::StatusOr<TraceReply> got = ParseReply(EncodeReply(refused));
  EXPECT_EQ(got.status(), refused);
}

TEST(TraceExchangeTest, ARefusalOfASmallDeviceSaysHowMuchWouldDo) {
  const absl::Status refused = DeviceTooSmall({.who = "aten::mm", .chunk_bytes = 4097}, 4096);
  const absl::StatusOr<TraceReply> got = ParseReply(EncodeReply(refused));
  EXPECT_EQ(got.status(), refused);
  EXPECT_EQ(LeastDeviceBytes(got.status()), 4097);
  std::string less_than_nothing = EncodeReply(refused);
  less_than_nothing.replace(
      less_than_nothing.find("4097", less_than_nothing.find("least_device_bytes")), 4, "-4097");
  EXPECT_THAT(ParseReply(less_than_nothing).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("DEVICE of -4097 bytes")));
}

TEST(TraceExchangeTest, WhatIsNoReplyIsRefused) {
  const std::string text = EncodeReply(SomeReply());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(ParseReply(text.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseReply(text + "x").ok());
  // Names that are lines of others.
  TraceReply reply = SomeReply();
  reply.made.tensor_names = {"a.weight\nb.weight", "c.weight"};
  EXPECT_FALSE(ParseReply(EncodeReply(reply)).ok());
  EXPECT_FALSE(ParseReply("{}\n").ok());
  EXPECT_FALSE(ParseReply(R"({"gemini_trace": "1", "error": "x", "code": 0})"
                          "\n")
                   .ok());
}

TEST(TraceExchangeTest, NumbersThatNobodyCanCountWithAreRefused) {
  TraceReply reply = SomeReply();
  reply.made.needs[0].bytes = INT64_MAX;
  EXPECT_FALSE(ParseReply(EncodeReply(reply)).ok());
  for (const int64_t count : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    reply = SomeReply();
    reply.request.round.batch = count;
    EXPECT_THAT(ParseReply(EncodeReply(reply)), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

// Each byte changed: refused, or read as another trace that passes its checks.
TEST(TraceExchangeTest, AnyChangedByteIsReadOrRefused) {
  const std::string text = EncodeReply(SomeReply());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ change);
      const absl::StatusOr<TraceReply> got = ParseReply(changed);
      if (!got.ok()) continue;
      EXPECT_OK(CheckTrace(got->made.trace));
      EXPECT_EQ(got->made.operator_names.size(), got->made.trace.operators.size());
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
