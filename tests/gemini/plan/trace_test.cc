// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/trace.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

// Forward of two trainable tensors and a buffer, backward, the update.
Trace SmallTrace() {
  Trace trace;
  trace.phase = "train";
  trace.tensors = {{100, TensorGroup::kTrainable, 0},
                   {200, TensorGroup::kTrainable, 0},
                   {8, TensorGroup::kBuffer, 1}};
  trace.operators = {{0, 1, 10, 5}, {1, 2, 20, 6}, {3, 1, 30, 7}, {4, 0, 40, 8}};
  trace.uses = {{.tensor = 0},
                {.tensor = 1},
                {.tensor = 2, .written = true},
                {.tensor = 0, .kind = ChunkKind::kGrad, .written = true}};
  trace.gradient_outs = {{1, 1}, {2, 0}};
  trace.updated = {0, 1};
  return trace;
}

TEST(TraceTest, UsesOfAPositionAreItsOperators) {
  const Trace trace = SmallTrace();
  ASSERT_OK(CheckTrace(trace));
  EXPECT_EQ(trace.num_positions(), 4);
  EXPECT_TRUE(trace.ends_with_update());
  ASSERT_EQ(trace.uses_of(1).size(), 2u);
  EXPECT_EQ(trace.uses_of(1)[1].tensor, 2);
  EXPECT_TRUE(trace.uses_of(3).empty());
}

TEST(TraceTest, EveryKindOfDamageIsNamed) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<std::pair<std::string, std::function<void(Trace&)>>> damages = {
      {"tensor 0 has -1 bytes", [](Trace& t) { t.tensors[0].size_bytes = -1; }},
      {"tensor 1 has", [](Trace& t) { t.tensors[1].size_bytes = kMost; }},
      {"of group 7", [](Trace& t) { t.tensors[1].group = TensorGroup(7); }},
      {"of type 3", [](Trace& t) { t.tensors[0].format.element = ElementType(3); }},
      {"fp16 with adamw and fp32 moments after trainable ones of fp32",
       [](Trace& t) { t.tensors[1].format.element = ElementType::kFp16; }},
      {"has optimizer 5", [](Trace& t) { t.tensors[0].format.optimizer = OptimizerKind(5); }},
      {"sgd and fp32 moments after trainable",
       [](Trace& t) { t.tensors[1].format.optimizer = OptimizerKind::kSgd; }},
      {"has moments of format 2", [](Trace& t) { t.tensors[0].format.moments = MomentFormat(2); }},
      {"its states on NVME after trainable", [](Trace& t) { t.tensors[1].states_on_nvme = true; }},
      {"fp32 with adamw and 8bit moments after",
       [](Trace& t) { t.tensors[1].format.moments = MomentFormat::k8Bit; }},
      {"of space 3", [](Trace& t) { t.tensors[2].space = 3; }},
      {"of space 1", [](Trace& t) { t.tensors[0].space = 1; }},
      {"of space 64, at most 63",
       [](Trace& t) {
         t.tensors.clear();
         for (int32_t i = 0; i <= 64; ++i) t.tensors.push_back({8, TensorGroup::kFrozen, i});
       }},
      {"of space -1", [](Trace& t) { t.tensors[0].space = -1; }},
      {"0 operators", [](Trace& t) { t.operators.clear(); }},
      {"operator 1 has", [](Trace& t) { t.operators[1].first_use = 0; }},
      {"operator 2 has -1 uses", [](Trace& t) { t.operators[2].num_uses = -1; }},
      {"4 of 5 uses", [](Trace& t) { t.uses.push_back({}); }},
      {"computes for -1", [](Trace& t) { t.operators[0].compute_ns = -1; }},
      {"computes for 1125899906842624",
       [](Trace& t) { t.operators[2].compute_ns = int64_t{1} << 50; }},
      {"-1 bytes of non-model", [](Trace& t) { t.operators[0].non_model_peak_bytes = -1; }},
      {"room for 3 operators of 4",
       [](Trace& t) {
         t.room_bytes = {1, 2, 3};
       }},
      {"operator 2 has room for -1 bytes",
       [](Trace& t) {
         t.room_bytes = {1, 2, -1, 4};
       }},
      {"operator 3 has room for",
       [](Trace& t) {
         t.room_bytes = {1, 2, 3, kMost};
       }},
      {"of tensor 3", [](Trace& t) { t.uses[0].tensor = 3; }},
      {"of tensor -1", [](Trace& t) { t.uses[0].tensor = -1; }},
      {"of kind 1", [](Trace& t) { t.uses[0].kind = ChunkKind::kMaster; }},
      {"use 3 is of kind 4 of tensor 2", [](Trace& t) { t.uses[3].tensor = 2; }},
      {"at position 4", [](Trace& t) { t.gradient_outs[1].position = 4; }},
      {"at position 0 after 2",
       [](Trace& t) {
         t.gradient_outs.push_back({0, 0});
       }},
      {"of tensor 2", [](Trace& t) { t.gradient_outs[0].tensor = 2; }},
      {"update of tensor 2", [](Trace& t) { t.updated[1] = 2; }},
      {"comes twice", [](Trace& t) { t.updated[1] = 0; }},
      {"update of tensor -1", [](Trace& t) { t.updated[1] = -1; }},
      {"the update's operator has 1 uses",
       [](Trace& t) {
         t.operators[2].num_uses = 0;
         t.operators[3] = {3, 1, 0, 0};
       }},
  };
  for (const auto& [text, damage] : damages) {
    Trace trace = SmallTrace();
    damage(trace);
    EXPECT_THAT(CheckTrace(trace), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
}

TEST(TraceTest, TimesAndPeaksDoNotChangeTheFingerprintAndAllElseDoes) {
  const Trace trace = SmallTrace();
  Trace slower = trace;
  for (TracedOperator& at : slower.operators) {
    at.compute_ns *= 2;
    at.non_model_peak_bytes += 1;
  }
  slower.phase = "other";
  EXPECT_EQ(Fingerprint(slower), Fingerprint(trace));
  const std::vector<std::function<void(Trace&)>> changes = {
      [](Trace& t) { t.tensors[0].size_bytes += 1; },
      [](Trace& t) { t.tensors[1].group = TensorGroup::kFrozen; },
      [](Trace& t) { t.tensors[2].space = 0; },
      [](Trace& t) { t.tensors[0].states_on_nvme = true; },
      [](Trace& t) {
        t.operators.push_back({4, 0, 0, 0});
      },
      [](Trace& t) {
        t.operators[0].num_uses = 2, t.operators[1] = {2, 1, 20, 6};
      },
      [](Trace& t) { t.uses[0].tensor = 1; },
      [](Trace& t) { t.uses[0].kind = ChunkKind::kGrad; },
      [](Trace& t) { t.uses[2].written = false; },
      [](Trace& t) { t.gradient_outs[0].position = 0; },
      [](Trace& t) { t.gradient_outs[0].tensor = 0; },
      [](Trace& t) { std::swap(t.updated[0], t.updated[1]); },
      [](Trace& t) { t.updated.pop_back(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Trace changed = trace;
    changes[i](changed);
    EXPECT_NE(Fingerprint(changed), Fingerprint(trace)) << "change " << i;
  }
}

// Traces are kept with a space by this number: another build must find them.
TEST(TraceTest, TheFingerprintIsTheSameInEveryProcess) {
  EXPECT_EQ(Fingerprint(SmallTrace()), uint64_t{4549783723099927726});
}

}  // namespace
}  // namespace gemini
