// SPDX-License-Identifier: Apache-2.0
// Ranks that share sequences send what the formulas say, at each site, in forward, in backward and
// in a forward that is run again.
#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/model_of_ranks.h"

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

// What one rank sends among those that share sequences, by site.
using Sent = std::map<std::string, int64_t>;

struct Case {
  const char* name;
  const char* json;
  SequenceLayout sequence;
  int64_t num_ranks;
  bool recompute = false;
  int64_t num_tensor = 1;  // That share layers in 1d, each of them with so many of sequences.
  int64_t tokens = 16;
  torch::ScalarType type = torch::kFloat32;
};

Sent SentIn(const Case& c) {
  const ModelSpec spec = ParseHfConfig(c.json, "config")->spec;
  const int64_t all_ranks = c.num_ranks * c.num_tensor;
  const RankLayout layout(
      *policies::Mesh::Make(all_ranks, {.sequence = c.num_ranks, .tensor = c.num_tensor}),
      *policies::TensorGrid::Make(policies::TensorMode::k1d, c.num_tensor), c.sequence);
  Sent of_first;
  RunThreadRanks(all_ranks, [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredLm> model,
        MakeModelOfRank(spec, c.type, me, layout,
                        {.division = UnitDivision::kReplicas, .block_elements = 1024}));
    model->set_recompute(c.recompute);
    const torch::Tensor tokens = torch::randint(0, 301, {kSequences, c.tokens}, torch::kInt64);
    model->Losses(tokens, LossFactors()).Backward(LossFactors());
    if (me.rank() != 0) return;
    for (const SentBytes& one : me.sent()) {
      if (one.group == "sequence") of_first[one.site] += one.bytes;
    }
  });
  return of_first;
}

// In bytes, by the costs of the heads of this rank's tensor line.
Sent Expected(const Case& c) {
  const int64_t ranks = c.num_ranks;
  const int64_t bytes = kBlocks * torch::elementSize(c.type);
  const double tokens = static_cast<double>(kSequences * c.tokens);
  const double width = static_cast<double>(kWidth / c.num_tensor);
  int64_t key_heads = c.json == kLlama ? 2 / c.num_tensor : 4 / c.num_tensor;
  const int64_t forwards = c.recompute ? 2 : 1;
  Sent sent = {{"loss", 2 * (ranks - 1) * 4}};
  if (c.sequence.sharing == SequenceSharing::kUlysses) {
    // Where there are fewer heads of keys than ranks, each is sent to several.
    key_heads = std::max(key_heads, ranks);
    const policies::UlyssesCosts costs = policies::UlyssesBlockCosts(
        ranks, tokens, width, static_cast<double>(key_heads * kHeadSize), forwards);
    sent["tokens of heads"] = static_cast<int64_t>(costs.in) * bytes;
    sent["heads of tokens"] = static_cast<int64_t>(costs.out) * bytes;
    return sent;
  }
  const policies::RingCosts costs =
      policies::RingBlockCosts(ranks, tokens, static_cast<double>(key_heads * kHeadSize), forwards);
  sent["ring keys"] = static_cast<int64_t>(costs.keys) * bytes;
  sent["ring gradients"] = kBlocks * static_cast<int64_t>(costs.gradients) * 4;  // Of fp32.
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
                       {"zigzag_2_bf16", kLlama, kZigzag, 2, false, 1, 16, torch::kBFloat16}};

class SequenceBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(SequenceBytesTest, AStepSendsWhatTheFormulasSay) {
  torch::set_num_threads(1);
  EXPECT_EQ(SentIn(GetParam()), Expected(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Cases, SequenceBytesTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

// 4 T h / P (P - 1) / P elements in forward: with T as with P, the same but for the last factor. A
// ring's grow.
TEST(SequenceScalingTest, UlyssesSendsAsMuchWithLongerSequencesOnMoreRanks) {
  torch::set_num_threads(1);
  const auto per_step = [](const SequenceLayout& sequence, int64_t ranks) {
    Case c = {"", kGpt2, sequence, ranks};
    c.tokens = 8 * ranks;
    Sent sent = SentIn(c);
    sent.erase("loss");
    int64_t bytes = 0;
    for (const auto& [site, of_site] : sent) bytes += of_site;
    return bytes;
  };
  EXPECT_EQ(per_step(kUlysses, 2) * 2, per_step(kUlysses, 4) * 4 / 3);
  EXPECT_EQ(per_step(kZigzag, 2) * (6 * 3 + 2), per_step(kZigzag, 4) * (6 + 2));
}

}  // namespace
}  // namespace gemini::trainer
