// SPDX-License-Identifier: Apache-2.0
// Ranks of a square, of several squares or of a cube send what the formulas say, at each site, in
// forward, in backward and in a forward that is run again. What products send is that of
// policies/mesh/tensor_costs.h.
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "policies/mesh/tensor_costs.h"
#include "tests/trainer/parallel/sent_bytes.h"
#include "trainer/families/hf_config.h"

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

// In fp32: those of a gather, or a sum in parts, of so many elements of all ranks of a ring.
int64_t Panel(int64_t elements, int64_t ranks) { return PanelBytes(elements * kBytes, ranks); }

struct Case {
  const char* name;
  const char* json;
  TensorMode mode;
  int64_t num_ranks;
  int64_t depth = 1;
  bool recompute = false;
  UnitDivision division = UnitDivision::kReplicas;
  int64_t num_data = 1;
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

void Add(Sent& sent, const char* kind, const char* axis, const char* site, int64_t bytes) {
  if (bytes > 0) sent[{kind, std::string("tensor ") + axis, site}] += bytes;
}
// Panels of one size, of which some are gathered and others added up in parts.
void AddPanels(Sent& sent, const char* axis, const char* site, int64_t gathers, int64_t sums,
               int64_t bytes) {
  Add(sent, kAllGather, axis, site, gathers * bytes);
  Add(sent, kReduceScatter, axis, site, sums * bytes);
}

// A norm's numbers of `tokens` over the axis `width`.
void AddNorms(Sent& sent, const Case& c, const char* width, int64_t tokens, int64_t q) {
  const int64_t numbers = c.is_gpt2() ? 2 : 1;
  Add(sent, kAllGather, width, "norm",
      (2 * kBlocks * c.forwards() + 1) * Panel(numbers * tokens * q, q));
  Add(sent, kAllReduce, width, "norm gradients", (2 * kBlocks + 1) * SumBytes(numbers * tokens, q));
}

// The products of all blocks. Inputs and matrices are gathered in each forward and for backward,
// and their gradients are added up in parts; what comes out is added up, and its gradients
// gathered.
void AddProducts(Sent& sent, const Case& c) {
  const policies::TensorGrid grid = *policies::TensorGrid::Make(c.mode, c.num_ranks, c.depth);
  const bool in_3d = c.mode == TensorMode::k3d;
  const int64_t forwards = c.forwards();
  const auto add = [&](const Matrix& matrix, bool leads_out, bool shares_input) {
    const policies::TensorCosts costs =
        policies::ProductCosts(grid,
                               {kSequences * kTokens, static_cast<double>(matrix.in),
                                static_cast<double>(matrix.out), leads_out},
                               {.num_forwards = forwards});
    const auto bytes = [](double elements, int64_t panels) {
      return static_cast<int64_t>(elements) * kBlocks * kBytes / panels;
    };
    AddPanels(sent, "i", "matrices", forwards + 1, 1, bytes(costs.matrix, forwards + 2));
    if (!shares_input) {
      AddPanels(sent, in_3d && leads_out ? "k" : "j", leads_out ? matrix.site : "shared input",
                forwards + 1, 1, bytes(costs.input, forwards + 2));
    }
    if (in_3d) {
      AddPanels(sent, leads_out ? "j" : "k", matrix.site, 1, forwards,
                bytes(costs.output, forwards + 1));
    }
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
  Add(sent, kAllGather, "j", "sums of logits", Panel(2 * tokens / q * q, q));
  AddPanels(sent, "i", "embedding", 1, 1, Panel(tokens * kWidth / q, q));
  // The head's forward computes the gradients, too, so the table is not gathered again.
  AddPanels(sent, "i", "head", 1, 1, Panel(vocabulary * kWidth / q, q));
  AddPanels(sent, "j", "head", 1, 1, Panel(tokens / q * vocabulary, q));
  Add(sent, kAllReduce, "i", "loss", SumBytes(1, q));
  if (c.depth > 1) Add(sent, kAllReduce, "k", "loss", SumBytes(1, c.depth));
  Add(sent, kAllReduce, "i", "gradients of parts",
      SumBytes((VectorsOfWidth(c) + VectorsBetween(c)) / q, q));
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
    Add(sent, kAllGather, axis, "sums of logits", Panel(2 * tokens / q * q, q));
  }
  AddPanels(sent, "i", "embedding", 1, 1, Panel(vocabulary * kWidth / (q * q), q));
  AddPanels(sent, "j", "embedding", 1, 1, Panel(tokens * kWidth / (q * q), q));
  AddPanels(sent, "i", "head", 1, 1, Panel(vocabulary * kWidth / (q * q), q));
  AddPanels(sent, "j", "head", 1, 1, Panel(tokens * kWidth / (q * q), q));
  AddPanels(sent, "k", "head", 1, 1, Panel(tokens * vocabulary / (q * q), q));
  Add(sent, kAllReduce, "i", "loss", SumBytes(1, q));
  Add(sent, kAllReduce, "i", "gradients of parts",
      SumBytes((VectorsOfWidth(c) + VectorsBetween(c)) / q, q));
  Add(sent, kAllReduce, "j", "gradients of parts", SumBytes(VectorsOfWidth(c) / q, q));
  Add(sent, kAllReduce, "k", "gradients of parts", SumBytes(VectorsBetween(c) / q, q));
  return sent;
}

// What a rank has of the model: of a 2.5d grid as many as of a square.
int64_t ElementsOfPart(const Case& c) {
  const int64_t q = 2, parts = c.mode == TensorMode::k3d ? q * q * q : q * q;
  const int64_t rows = c.mode == TensorMode::k3d ? q * q : q;
  const int64_t vocabulary = (kVocabulary + rows - 1) / rows * rows;
  int64_t matrices = (c.is_gpt2() ? 1 : 2) * vocabulary * kWidth;  // Tied, or not.
  for (const std::vector<Matrix>& of_block : {Into(c), kOutOf}) {
    for (const Matrix& matrix : of_block) matrices += kBlocks * matrix.in * matrix.out;
  }
  return matrices / parts + (VectorsOfWidth(c) + VectorsBetween(c)) / q;
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
    {"llama_3d", kLlama, TensorMode::k3d, 8},
    {"llama_2_5d_of_depth_1", kLlama, TensorMode::k2Point5d, 4},
    {"gpt2_2d_by_data_2", kGpt2, TensorMode::k2d, 4, 1, false, UnitDivision::kReplicas, 2},
    {"llama_2d_by_data_2_recomputed_in_shards", kLlama, TensorMode::k2d, 4, 1, true,
     UnitDivision::kShards, 2}};

class TensorGridBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(TensorGridBytesTest, AStepSendsWhatTheFormulasSay) {
  const Case& c = GetParam();
  const RankLayout layout(*policies::Mesh::Make(c.num_ranks * c.num_data, {.tensor = c.num_ranks}),
                          *policies::TensorGrid::Make(c.mode, c.num_ranks, c.depth));
  for (const SentInStep& step : RunStep({ParseHfConfig(c.json, "config")->spec, layout, kSequences,
                                         kTokens, c.division, c.recompute})) {
    Sent expected = c.mode == TensorMode::k3d ? BytesOf3d(c) : BytesOf2d(c);
    expected.insert(step.of_units.begin(), step.of_units.end());
    EXPECT_EQ(step.sent, expected);
    // Those with the same parts have units of as many elements as a part has, but for padding. A
    // block has at most 16 tensors.
    const int64_t most_padding =
        (16 * kBlocks + 4 + (kBlocks + 2) * std::ssize(layout.parts().front())) * kBlockElements;
    EXPECT_GE(step.unit_elements, ElementsOfPart(c));
    EXPECT_LT(step.unit_elements, ElementsOfPart(c) + most_padding);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorGridBytesTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace gemini::trainer
