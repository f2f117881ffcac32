// SPDX-License-Identifier: Apache-2.0
// Ranks that share layers send what the formulas say, at each site, in forward, in backward and in
// a forward that is run again.
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/model_of_ranks.h"

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

// What one rank sends, by group and site.
using Sent = std::map<std::pair<std::string, std::string>, int64_t>;

// Those of a sum of so many elements over a ring.
int64_t SumBytes(int64_t elements, int64_t ranks) {
  return 2 * elements * (ranks - 1) / ranks * kBytes;
}

struct Case {
  const char* name;
  const char* json;
  int64_t num_ranks;
  bool recompute;
  bool parts = false;  // Of sequences, between layers.
};
const Case kCases[] = {{"gpt2_2", kGpt2, 2, false},
                       {"gpt2_2_recomputed", kGpt2, 2, true},
                       {"gpt2_4", kGpt2, 4, false},
                       {"llama_2", kLlama, 2, false},
                       {"llama_4", kLlama, 4, false},
                       {"llama_4_recomputed", kLlama, 4, true},
                       {"gpt2_2_in_parts", kGpt2, 2, false, true},
                       {"gpt2_4_in_parts_recomputed", kGpt2, 4, true, true}};

class TensorBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorBytesTest, In1dAStepSendsWhatTheFormulasSay) {
  torch::set_num_threads(1);
  const Case& c = GetParam();
  const ModelSpec spec = ParseHfConfig(c.json, "config")->spec;
  const RankLayout layout(
      *policies::Mesh::Make(c.num_ranks, {.tensor = c.num_ranks}),
      *policies::TensorGrid::Make(policies::TensorMode::k1d, c.num_ranks),
      {.sharing = c.parts ? SequenceSharing::kMegatron : SequenceSharing::kNone});
  const int64_t hidden =
      SumBytes(kSequences * kTokens * kWidth, c.num_ranks);  // Of 2 T h (t - 1) / t.
  const int64_t ranks = c.num_ranks;
  // The products of all blocks. Their inner sizes do not matter in 1d.
  const auto product = [&](bool leads_out) {
    const policies::TensorCosts costs =
        policies::ProductCosts(layout.grid(), {kSequences * kTokens, kWidth, kWidth, leads_out},
                               {.num_forwards = c.recompute ? 2 : 1, .divides_sequences = c.parts});
    return static_cast<int64_t>(costs.total()) * kBlocks * kBytes;
  };
  Sent expected = {
      {{"tensor j", "embedding"}, hidden},
      {{"tensor j", "attention out"}, product(/*leads_out=*/true)},
      {{"tensor j", "feed out"}, product(/*leads_out=*/true)},
      {{"tensor j", "shared input"}, 2 * product(/*leads_out=*/false)},
      {{"tensor j", "head"}, hidden},
      {{"tensor j", "sums of logits"}, 2 * kSequences * kTokens * (ranks - 1) * kBytes}};
  if (c.json == kLlama && ranks == 4) {
    // The gradients of key and value matrices, of which two ranks have the same head.
    expected[{"key heads", "gradients of parts"}] = kBlocks * 2 * SumBytes(kWidth * kWidth / 4, 2);
  }
  if (c.parts) {
    // Of norms, biases of what comes out, and positions.
    expected[{"tensor j", "gradients of parts"}] =
        (6 * kBlocks + 2 + kTokens) * SumBytes(kWidth, ranks);
  }
  RunThreadRanks(ranks, [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredLm> model,
        MakeModelOfRank(spec, torch::kFloat32, me, layout,
                        {.division = UnitDivision::kReplicas, .block_elements = 1024}));
    model->set_recompute(c.recompute);
    const torch::Tensor tokens = torch::randint(0, 301, {kSequences, kTokens}, torch::kInt64);
    model->Losses(tokens, LossFactors()).Backward(LossFactors());
    Sent sent;
    for (const SentBytes& one : me.sent()) {
      if (one.bytes > 0) sent[{one.group, one.site}] += one.bytes;
    }
    EXPECT_EQ(sent, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorBytesTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace gemini::trainer
