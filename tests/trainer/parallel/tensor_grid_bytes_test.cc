// SPDX-License-Identifier: Apache-2.0
// Ranks of a square, of several squares or of a cube send what the formulas say, at each site, in
// forward, in backward and in a forward that is run again. What products send is that of
// policies/mesh/tensor_costs.h.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/model_of_ranks.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;
using policies::TensorMode;

constexpr int64_t kSequences = 8, kTokens = 16, kBlocks = 2, kWidth = 64, kInner = 256;
constexpr int64_t kVocabulary = 301;
constexpr int64_t kBytes = 4;  // Of fp32.
constexpr char kGpt2[] =
    R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":2,"n_head":4})";
constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":256})";

// What one rank sends, by group and site.
using Sent = std::map<std::pair<std::string, std::string>, int64_t>;

// Those of a gather, or a sum in parts, of so many elements of all ranks of a ring.
int64_t PanelBytes(int64_t elements, int64_t ranks) {
  return elements / ranks * (ranks - 1) * kBytes;
}
// Those of a sum.
int64_t SumBytes(int64_t elements, int64_t ranks) {
  return 2 * PanelBytes((elements + ranks - 1) / ranks * ranks, ranks);
}

struct Case {
  const char* name;
  const char* json;
  TensorMode mode;
  int64_t num_ranks;
  int64_t depth = 1;
  bool recompute = false;
  UnitDivision division = UnitDivision::kReplicas;
  bool is_gpt2() const { return json == kGpt2; }
  int64_t forwards() const { return recompute ? 2 : 1; }
};

struct Matrix {
  const char* site;
  int64_t in;
  int64_t out;
};
// The matrices of a block: those that lead into its parts, of which those of one site read one
// tensor, and those that lead out of them.
std::vector<Matrix> Into(const Case& c) {
  if (c.is_gpt2()) return {{"attention in", kWidth, 3 * kWidth}, {"feed in", kWidth, kInner}};
  return {{"attention in", kWidth, kWidth},
          {"attention in", kWidth, kWidth / 2},  // Two of four heads.
          {"attention in", kWidth, kWidth / 2},
          {"feed in", kWidth, kInner},
          {"feed in", kWidth, kInner}};
}
const std::vector<Matrix> kOutOf = {{"attention out", kWidth, kWidth},
                                    {"feed out", kInner, kWidth}};

// The elements of a model's vectors over the hidden states' width, and over what is between.
int64_t VectorsOfWidth(const Case& c) {
  return c.is_gpt2() ? kBlocks * (4 + 2) * kWidth + 2 * kWidth + kTokens * kWidth
                     : (2 * kBlocks + 1) * kWidth;
}
int64_t VectorsBetween(const Case& c) { return c.is_gpt2() ? kBlocks * (3 * kWidth + kInner) : 0; }

void Add(Sent& sent, const char* axis, const char* site, int64_t bytes) {
  sent[{std::string("tensor ") + axis, site}] += bytes;
}

// A norm's numbers of `tokens` over the axis `width`.
void AddNorms(Sent& sent, const Case& c, const char* width, int64_t tokens, int64_t q) {
  const int64_t numbers = c.is_gpt2() ? 2 : 1;
  Add(sent, width, "norm", (2 * kBlocks * c.forwards() + 1) * PanelBytes(numbers * tokens * q, q));
  Add(sent, width, "norm gradients", (2 * kBlocks + 1) * SumBytes(numbers * tokens, q));
}

// The products of all blocks.
void AddProducts(Sent& sent, const Case& c) {
  const policies::TensorGrid grid = *policies::TensorGrid::Make(c.mode, c.num_ranks, c.depth);
  const bool in_3d = c.mode == TensorMode::k3d;
  const auto add = [&](const Matrix& matrix, bool leads_out, bool shares_input) {
    const policies::TensorCosts costs =
        policies::ProductCosts(grid,
                               {kSequences * kTokens, static_cast<double>(matrix.in),
                                static_cast<double>(matrix.out), leads_out},
                               {.num_forwards = c.forwards()});
    const auto bytes = [](double elements) {
      return static_cast<int64_t>(elements) * kBlocks * kBytes;
    };
    Add(sent, "i", "matrices", bytes(costs.matrix));
    if (!shares_input) {
      Add(sent, in_3d && leads_out ? "k" : "j", leads_out ? matrix.site : "shared input",
          bytes(costs.input));
    }
    if (in_3d) Add(sent, leads_out ? "j" : "k", matrix.site, bytes(costs.output));
  };
  absl::string_view before;
  for (const Matrix& matrix : Into(c)) {
    add(matrix, /*leads_out=*/false, /*shares_input=*/matrix.site == before);
    before = matrix.site;
  }
  for (const Matrix& matrix : kOutOf) add(matrix, /*leads_out=*/true, /*shares_input=*/false);
}

Sent BytesOf2d(const Case& c) {
  const int64_t q = 2;
  const int64_t tokens = kSequences * kTokens / c.depth;  // Of a square.
  const int64_t vocabulary = (kVocabulary + q - 1) / q * q;
  Sent sent;
  AddProducts(sent, c);
  AddNorms(sent, c, "j", tokens / q, q);
  Add(sent, "j", "sums of logits", PanelBytes(2 * tokens / q * q, q));
  Add(sent, "i", "embedding", 2 * PanelBytes(tokens * kWidth / q, q));
  // The head's forward computes the gradients, too, so the table is not gathered again.
  Add(sent, "i", "head", 2 * PanelBytes(vocabulary * kWidth / q, q));
  Add(sent, "j", "head", 2 * PanelBytes(tokens / q * vocabulary, q));
  Add(sent, "i", "loss", SumBytes(1, q));
  if (c.depth > 1) Add(sent, "k", "loss", SumBytes(1, c.depth));
  Add(sent, "i", "gradients of parts", SumBytes((VectorsOfWidth(c) + VectorsBetween(c)) / q, q));
  return sent;
}

Sent BytesOf3d(const Case& c) {
  const int64_t q = 2;
  const int64_t tokens = kSequences * kTokens;
  const int64_t vocabulary = (kVocabulary + q * q - 1) / (q * q) * q * q;
  Sent sent;
  AddProducts(sent, c);
  AddNorms(sent, c, "k", tokens / (q * q), q);
  for (const char* const axis : {"j", "k"}) {
    Add(sent, axis, "sums of logits", PanelBytes(2 * tokens / q * q, q));
  }
  Add(sent, "i", "embedding", 2 * PanelBytes(vocabulary * kWidth / (q * q), q));
  Add(sent, "j", "embedding", 2 * PanelBytes(tokens * kWidth / (q * q), q));
  Add(sent, "i", "head", 2 * PanelBytes(vocabulary * kWidth / (q * q), q));
  Add(sent, "j", "head", 2 * PanelBytes(tokens * kWidth / (q * q), q));
  Add(sent, "k", "head", 2 * PanelBytes(tokens * vocabulary / (q * q), q));
  Add(sent, "i", "loss", SumBytes(1, q));
  Add(sent, "i", "gradients of parts", SumBytes((VectorsOfWidth(c) + VectorsBetween(c)) / q, q));
  Add(sent, "j", "gradients of parts", SumBytes(VectorsOfWidth(c) / q, q));
  Add(sent, "k", "gradients of parts", SumBytes(VectorsBetween(c) / q, q));
  std::erase_if(sent, [](const auto& one) { return one.second == 0; });
  return sent;
}

const Case kCases[] = {
    {"gpt2_2d", kGpt2, TensorMode::k2d, 4},
    {"gpt2_2d_recomputed", kGpt2, TensorMode::k2d, 4, 1, true},
    {"llama_2d", kLlama, TensorMode::k2d, 4},
    {"gpt2_2_5d", kGpt2, TensorMode::k2Point5d, 8, 2},
    {"llama_2_5d_recomputed", kLlama, TensorMode::k2Point5d, 8, 2, true},
    {"gpt2_2_5d_in_shards", kGpt2, TensorMode::k2Point5d, 8, 2, false, UnitDivision::kShards},
    {"gpt2_3d", kGpt2, TensorMode::k3d, 8},
    {"gpt2_3d_recomputed", kGpt2, TensorMode::k3d, 8, 1, true},
    {"llama_3d", kLlama, TensorMode::k3d, 8}};

class TensorGridBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorGridBytesTest, AStepSendsWhatTheFormulasSay) {
  torch::set_num_threads(1);
  const Case& c = GetParam();
  const ModelSpec spec = ParseHfConfig(c.json, "config")->spec;
  const RankLayout layout(*policies::Mesh::Make(c.num_ranks, {.tensor = c.num_ranks}),
                          *policies::TensorGrid::Make(c.mode, c.num_ranks, c.depth));
  Sent expected = c.mode == TensorMode::k3d ? BytesOf3d(c) : BytesOf2d(c);
  RunThreadRanks(c.num_ranks, [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GatheredLm> model,
                         MakeModelOfRank(spec, torch::kFloat32, me, layout,
                                         {.division = c.division, .block_elements = 1024}));
    model->set_recompute(c.recompute);
    const torch::Tensor tokens =
        torch::randint(0, kVocabulary, {kSequences, kTokens}, torch::kInt64);
    model->Losses(tokens, LossFactors()).Backward(LossFactors());
    Sent sent;
    int64_t gradients = 0;
    for (const SentBytes& one : me.sent()) {
      if (one.group.starts_with("tensor") && one.bytes > 0) {
        sent[{one.group, one.site}] += one.bytes;
      } else if (one.site.starts_with("gradients of")) {
        gradients += one.bytes;
      }
    }
    EXPECT_EQ(sent, expected);
    // Those with the same parts add up their gradients: 2 (in out/q^2)(d - 1)/d elements, or in
    // shards once that.
    int64_t elements = 0;
    for (const auto& unit : model->units()) elements += unit->cut().num_elements();
    const bool in_shards = c.division == UnitDivision::kShards;
    EXPECT_EQ(gradients, in_shards ? PanelBytes(elements, c.depth) : SumBytes(elements, c.depth));
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorGridBytesTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace gemini::trainer
