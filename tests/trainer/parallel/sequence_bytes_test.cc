// SPDX-License-Identifier: Apache-2.0
// Ranks that share sequences send what the formulas say, at each site, in forward, in backward and
// in a forward that is run again.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/trainer/parallel/sent_bytes.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kSequences = 2, kBlocks = 2, kWidth = 64, kHeadSize = 16;
constexpr char kGpt2[] =
    R"({"model_type":"gpt2","vocab_size":301,"n_positions":64,"n_embd":64,"n_layer":2,"n_head":4})";
// Two heads of keys and values.
constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":301,"max_position_embeddings":64,"hidden_size":64,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":256})";

struct Case {
  const char* name;
  const char* json;
  SequenceLayout sequence;
  int64_t num_ranks;
  bool recompute = false;
  int64_t num_tensor = 1;  // That share layers in 1d, each of them with so many of sequences.
  int64_t tokens = 16;
  torch::ScalarType type = torch::kFloat32;
  int64_t num_data = 1;
  UnitDivision division = UnitDivision::kReplicas;
};

std::vector<SentInStep> StepsOf(const Case& c) {
  const RankLayout layout(*policies::Mesh::Make(c.num_ranks * c.num_tensor * c.num_data,
                                                {.sequence = c.num_ranks, .tensor = c.num_tensor}),
                          *policies::TensorGrid::Make(policies::TensorMode::k1d, c.num_tensor),
                          c.sequence);
  return RunStep({ParseHfConfig(c.json, "config")->spec, layout, kSequences, c.tokens, c.division,
                  c.recompute, c.type});
}

// What passes between ranks that share sequences, by the costs of the heads of one tensor line.
Sent BytesOfSequences(const Case& c) {
  const int64_t ranks = c.num_ranks;
  const int64_t bytes = kBlocks * static_cast<int64_t>(torch::elementSize(c.type));
  const double tokens = static_cast<double>(kSequences * c.tokens);
  const double width = static_cast<double>(kWidth / c.num_tensor);
  int64_t key_heads = c.json == kLlama ? 2 / c.num_tensor : 4 / c.num_tensor;
  const int64_t forwards = c.recompute ? 2 : 1;
  Sent sent;
  sent[{kAllReduce, "sequence", "loss"}] = SumBytes(1, ranks);
  if (c.sequence.sharing == SequenceSharing::kUlysses) {
    // Where there are fewer heads of keys than ranks, each is sent to several.
    key_heads = std::max(key_heads, ranks);
    const policies::UlyssesCosts costs = policies::UlyssesBlockCosts(
        ranks, tokens, width, static_cast<double>(key_heads * kHeadSize), forwards);
    sent[{kAllToAll, "sequence", "tokens of heads"}] = static_cast<int64_t>(costs.in) * bytes;
    sent[{kAllToAll, "sequence", "heads of tokens"}] = static_cast<int64_t>(costs.out) * bytes;
    return sent;
  }
  const policies::RingCosts costs =
      policies::RingBlockCosts(ranks, tokens, static_cast<double>(key_heads * kHeadSize), forwards);
  sent[{kShift, "sequence", "ring keys"}] = static_cast<int64_t>(costs.keys) * bytes;
  sent[{kShift, "sequence", "ring gradients"}] =
      kBlocks * static_cast<int64_t>(costs.gradients) * 4;  // Of fp32.
  return sent;
}

constexpr SequenceLayout kUlysses = {SequenceSharing::kUlysses};
constexpr SequenceLayout kRing = {SequenceSharing::kRing};
constexpr SequenceLayout kZigzag = {SequenceSharing::kRing, /*zigzag=*/true};

const Case kCases[] = {{"ulysses_2", kGpt2, kUlysses, 2},
                       {"ulysses_4_recomputed", kGpt2, kUlysses, 4, true},
                       {"ulysses_2_llama", kLlama, kUlysses, 2},
                       {"ulysses_4_llama", kLlama, kUlysses, 4},
                       {"ulysses_2_of_1d", kLlama, kUlysses, 2, false, 2},
                       {"ring_2", kGpt2, kRing, 2},
                       {"ring_4_recomputed", kGpt2, kRing, 4, true},
                       {"zigzag_4", kGpt2, kZigzag, 4},
                       {"zigzag_4_llama", kLlama, kZigzag, 4},
                       {"zigzag_2_of_1d", kLlama, kZigzag, 2, true, 2},
                       {"zigzag_2_bf16", kLlama, kZigzag, 2, false, 1, 16, torch::kBFloat16},
                       {"zigzag_4_by_data_2", kGpt2, kZigzag, 4, false, 1, 16, torch::kFloat32, 2},
                       {"ring_4_by_data_2_recomputed_in_shards", kLlama, kRing, 4, true, 1, 16,
                        torch::kFloat32, 2, UnitDivision::kShards},
                       {"ulysses_2_by_data_2_in_shards", kGpt2, kUlysses, 2, false, 1, 16,
                        torch::kFloat32, 2, UnitDivision::kShards}};

class SequenceBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(SequenceBytesTest, AStepSendsWhatTheFormulasSay) {
  for (const SentInStep& step : StepsOf(GetParam())) {
    Sent sent = step.sent;
    // What passes between ranks that share layers is for tensor_bytes_test.
    std::erase_if(sent, [](const auto& one) { return std::get<1>(one.first) == "tensor j"; });
    Sent expected = BytesOfSequences(GetParam());
    expected.insert(step.of_units.begin(), step.of_units.end());
    EXPECT_EQ(sent, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SequenceBytesTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

// 4 T h / P (P - 1) / P elements in forward: with T as with P, the same but for the last factor. A
// ring's grow.
TEST(SequenceScalingTest, UlyssesSendsAsMuchWithLongerSequencesOnMoreRanks) {
  const auto per_step = [](const SequenceLayout& sequence, int64_t ranks) {
    Case c = {"", kGpt2, sequence, ranks};
    c.tokens = 8 * ranks;
    const Sent of_first = StepsOf(c).front().sent;
    int64_t bytes = 0;
    for (const auto& [key, sent] : of_first) {
      const auto& [kind, group, site] = key;
      if (group == "sequence" && site != "loss") bytes += sent;
    }
    return bytes;
  };
  EXPECT_EQ(per_step(kUlysses, 2) * 2, per_step(kUlysses, 4) * 4 / 3);
  EXPECT_EQ(per_step(kZigzag, 2) * (6 * 3 + 2), per_step(kZigzag, 4) * (6 + 2));
}

}  // namespace
}  // namespace gemini::trainer
