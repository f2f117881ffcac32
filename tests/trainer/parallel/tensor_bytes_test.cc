// SPDX-License-Identifier: Apache-2.0
// Ranks that share layers send what the formulas say, at each site, in forward, in backward and in
// a forward that is run again.
#include <string>

#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/trainer/parallel/sent_bytes.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kSequences = 2, kTokens = 16, kBlocks = 4, kWidth = 64;
constexpr int64_t kBytes = 4;  // Of fp32.
constexpr char kGpt2[] =
    R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":4,"n_head":4})";
// Each key and value head is that of two ranks, where there are four.
constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,
        "num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":256})";

struct Case {
  const char* name;
  const char* json;
  int64_t num_ranks;  // That share layers.
  bool recompute = false;
  bool parts = false;  // Of sequences, between layers.
  int64_t num_data = 1;
  UnitDivision division = UnitDivision::kReplicas;
};
const Case kCases[] = {
    {"gpt2_2", kGpt2, 2},
    {"gpt2_2_recomputed", kGpt2, 2, true},
    {"gpt2_4", kGpt2, 4},
    {"llama_2", kLlama, 2},
    {"llama_4", kLlama, 4},
    {"llama_4_recomputed", kLlama, 4, true},
    {"gpt2_2_in_parts", kGpt2, 2, false, true},
    {"gpt2_4_in_parts_recomputed", kGpt2, 4, true, true},
    {"llama_2_by_data_2", kLlama, 2, false, false, 2},
    {"gpt2_2_by_data_2_recomputed_in_shards", kGpt2, 2, true, false, 2, UnitDivision::kShards},
    {"gpt2_2_in_parts_by_data_2", kGpt2, 2, false, true, 2}};

// What passes between the ranks of a line.
Sent BytesOfLine(const Case& c, const ModelSpec& spec) {
  const int64_t ranks = c.num_ranks, forwards = c.recompute ? 2 : 1;
  // Of the hidden states of a micro-batch, T h (t - 1) / t elements, twice in a sum.
  const int64_t panel = PanelBytes(kSequences * kTokens * kWidth * kBytes, ranks);
  // The products of all blocks. Their inner sizes do not matter in 1d.
  const auto product = [&](bool leads_out) {
    const policies::TensorCosts costs =
        policies::ProductCosts(*policies::TensorGrid::Make(policies::TensorMode::k1d, ranks),
                               {kSequences * kTokens, kWidth, kWidth, leads_out},
                               {.num_forwards = forwards, .divides_sequences = c.parts});
    return static_cast<int64_t>(costs.total()) * kBlocks * kBytes;
  };
  Sent sent;
  sent[{kAllGather, "tensor j", "sums of logits"}] =
      2 * kSequences * kTokens * (ranks - 1) * kBytes;
  const int64_t into = product(/*leads_out=*/false), out_of = product(/*leads_out=*/true);
  if (c.parts) {
    sent[{kReduceScatter, "tensor j", "embedding"}] = panel;
    sent[{kAllGather, "tensor j", "embedding"}] = panel;
    for (const char* const site : {"attention out", "feed out"}) {
      sent[{kReduceScatter, "tensor j", site}] = out_of / (forwards + 1) * forwards;
      sent[{kAllGather, "tensor j", site}] = out_of / (forwards + 1);
    }
    // Those of attention and of the feed-forward part.
    sent[{kAllGather, "tensor j", "shared input"}] = 2 * into / (forwards + 2) * (forwards + 1);
    sent[{kReduceScatter, "tensor j", "shared input"}] = 2 * into / (forwards + 2);
    sent[{kAllGather, "tensor j", "head"}] = panel;
    sent[{kReduceScatter, "tensor j", "head"}] = panel;
    // Of norms, biases of what comes out, and positions.
    sent[{kAllReduce, "tensor j", "gradients of parts"}] =
        (6 * kBlocks + 2 + kTokens) * SumBytes(kWidth, ranks);
  } else {
    sent[{kAllReduce, "tensor j", "embedding"}] = 2 * panel;
    sent[{kAllReduce, "tensor j", "attention out"}] = out_of;
    sent[{kAllReduce, "tensor j", "feed out"}] = out_of;
    sent[{kAllReduce, "tensor j", "shared input"}] = 2 * into;
    sent[{kAllReduce, "tensor j", "head"}] = 2 * panel;
  }
  if (spec.attention.num_kv_heads < ranks) {
    // The gradients of key and value matrices, of which two ranks have the same head.
    sent[{kAllReduce, "key heads", "gradients of parts"}] =
        kBlocks * 2 * SumBytes(kWidth * kWidth / 4, 2);
  }
  return sent;
}

class TensorBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorBytesTest, In1dAStepSendsWhatTheFormulasSay) {
  const Case& c = GetParam();
  const ModelSpec spec = ParseHfConfig(c.json, "config")->spec;
  const RankLayout layout(
      *policies::Mesh::Make(c.num_ranks * c.num_data, {.tensor = c.num_ranks}),
      *policies::TensorGrid::Make(policies::TensorMode::k1d, c.num_ranks),
      {.sharing = c.parts ? SequenceSharing::kMegatron : SequenceSharing::kNone});
  for (const SentInStep& step :
       RunStep({spec, layout, kSequences, kTokens, c.division, c.recompute})) {
    Sent expected = BytesOfLine(c, spec);
    expected.insert(step.of_units.begin(), step.of_units.end());
    EXPECT_EQ(step.sent, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorBytesTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace gemini::trainer
