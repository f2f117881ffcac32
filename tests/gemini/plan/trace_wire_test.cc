// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/trace_wire.h"

#include <random>
#include <string>
#include <vector>

#include "gemini/trace_generated.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

Trace SmallTrace() {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{4096, TensorGroup::kTrainable, 0},
                   {0, TensorGroup::kFrozen, 0},
                   {100, TensorGroup::kBuffer, 1}};
  trace.operators = {{0, 2, 1'000'000, 77}, {2, 1, 5, 0}, {3, 0, 9, 1}};
  trace.uses = {
      {0, ChunkKind::kParam, false}, {2, ChunkKind::kParam, true}, {0, ChunkKind::kGrad, true}};
  trace.gradient_outs = {{1, 0}};
  trace.updated = {0};
  return trace;
}

TEST(TraceWireTest, ATraceComesBackAsItWas) {
  Trace trace = SmallTrace();
  trace.tensors[0].states_on_nvme = true;
  for (const std::vector<int64_t>& room_bytes :
       {std::vector<int64_t>(), std::vector<int64_t>{0, 100, int64_t{1} << 60}}) {
    trace.room_bytes = room_bytes;
    ASSERT_OK(CheckTrace(trace));
    ASSERT_OK_AND_ASSIGN(const Trace decoded, DecodeTrace(EncodeTrace(trace)));
    EXPECT_EQ(decoded, trace);
  }
}

TEST(TraceWireTest, WhatNoTraceHasIsRefused) {
  EXPECT_THAT(DecodeTrace(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DecodeTrace(std::string(4096, '\xff')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no trace")));
  Trace trace = SmallTrace();
  trace.uses[1].tensor = 3;
  EXPECT_THAT(DecodeTrace(EncodeTrace(trace)), StatusIs(absl::StatusCode::kInvalidArgument));
  trace = SmallTrace();
  trace.phase = std::string(kMaxPhaseChars + 1, 'a');
  EXPECT_THAT(DecodeTrace(EncodeTrace(trace)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("129 characters")));
}

TEST(TraceWireTest, AnElementTypeThatDoesNotExistIsRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const std::vector<wire::TracedTensor> tensors = {wire::TracedTensor(8, 0, 0, 3, 0, 0, false)};
  const std::vector<wire::TracedOperator> operators = {wire::TracedOperator(1, 0, 0, 0)};
  const auto tensor_list = builder.CreateVectorOfStructs(tensors);
  const auto operator_list = builder.CreateVectorOfStructs(operators);
  wire::FinishTraceBuffer(builder,
                          wire::CreateTrace(builder, 0, tensor_list, operator_list, 0, 0, 0));
  const std::string bytes(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                          builder.GetSize());
  EXPECT_THAT(DecodeTrace(bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of type 3")));
}

// Property: bytes with some changed are a trace that passes the checks, or are refused.
TEST(TraceWireTest, ChangedBytesNeverGiveATraceThatDoesNotCheck) {
  std::mt19937_64 random(/*seed=*/11);
  Trace trace = SmallTrace();
  trace.room_bytes = {0, 100, 1};
  const std::string good = EncodeTrace(trace);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (uint64_t i = 1 + random() % 4; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    const absl::StatusOr<Trace> decoded = DecodeTrace(bytes);
    if (decoded.ok()) {
      ASSERT_OK(CheckTrace(*decoded));
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1'000);
}

TEST(TraceWireTest, TheHashIsOfTheTensorsAndTheSameInEveryProcess) {
  const std::vector<TracedTensor> tensors = SmallTrace().tensors;
  EXPECT_EQ(TensorsHash(tensors), TensorsHash(SmallTrace().tensors));
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<TracedTensor> other = tensors;
    other[i].size_bytes += 1;
    EXPECT_NE(TensorsHash(other), TensorsHash(tensors));
    other = tensors;
    other[i].space += 1;
    EXPECT_NE(TensorsHash(other), TensorsHash(tensors));
    other = tensors;
    other[i].format.element = ElementType::kBf16;
    EXPECT_NE(TensorsHash(other), TensorsHash(tensors));
    other = tensors;
    other[i].states_on_nvme = true;
    EXPECT_NE(TensorsHash(other), TensorsHash(tensors));
    other = tensors;
    other[i].format.moments = MomentFormat::k8Bit;
    EXPECT_NE(TensorsHash(other), TensorsHash(tensors));
  }
  EXPECT_EQ(TensorsHash({}), 0xa8c7f832281a39c5u);  // FNV-1a of eight zero bytes.
}

}  // namespace
}  // namespace gemini
