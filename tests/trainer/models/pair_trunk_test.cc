// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/pair_trunk.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/forecast/meta_kernels.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kSequences = 4;
constexpr int64_t kResidues = 5;

// The triangle width is none of EsmFold's, which is the pair width.
PairTrunkSpec Spec() {
  return {.msa_width = 12,
          .pair_width = 8,
          .msa_heads = {.num_heads = 3, .head_size = 6},
          .triangle_heads = {.num_heads = 2, .head_size = 7},
          .triangle_width = 10,
          .outer_width = 3,
          .transition_factor = 2};
}

std::unique_ptr<PairBlock> MakeBlock(const torch::TensorOptions& options) {
  PlainLayers layers(options);
  auto block = std::make_unique<PairBlock>(Spec(), layers);
  if (options.device() == torch::kMeta) return block;
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : block->parameters()) parameter.normal_(0, 0.2);
  return block;
}

MsaAndPair Inputs(const torch::TensorOptions& options) {
  torch::manual_seed(2);
  return {.msa = torch::randn({kBatch, kSequences, kResidues, 12}).to(options).requires_grad_(),
          .pair = torch::randn({kBatch, kResidues, kResidues, 8}).to(options).requires_grad_()};
}

torch::TensorOptions OnMeta() { return torch::TensorOptions().device(torch::kMeta); }

std::vector<std::string> WithBias(const std::vector<std::string>& layers) {
  std::vector<std::string> names;
  for (const std::string& layer : layers) {
    names.push_back(layer + ".weight");
    names.push_back(layer + ".bias");
  }
  return names;
}

// Query, key and value have no bias.
void AddHeads(const std::string& part, std::vector<std::string>& names) {
  for (const char* name : {"q", "k", "v"}) {
    names.push_back(absl::StrCat(part, ".mha.linear_", name, ".weight"));
  }
  for (std::string& name : WithBias({part + ".mha.linear_g", part + ".mha.linear_o"})) {
    names.push_back(std::move(name));
  }
}

TEST(PairTrunkTest, NamesAreThoseOfEsmFoldAndOpenFold) {
  std::vector<std::string> expected;
  const auto add = [&](const std::vector<std::string>& layers) {
    for (std::string& name : WithBias(layers)) expected.push_back(std::move(name));
  };
  add({"msa_att_row.layer_norm_m", "msa_att_row.layer_norm_z"});
  expected.emplace_back("msa_att_row.linear_z.weight");
  AddHeads("msa_att_row", expected);
  add({"msa_att_col._msa_att.layer_norm_m"});
  AddHeads("msa_att_col._msa_att", expected);
  for (const char* name : {"layer_norm", "linear_1", "linear_2"}) {
    add({absl::StrCat("msa_transition.", name)});
  }
  for (const char* name : {"layer_norm", "linear_1", "linear_2", "linear_out"}) {
    add({absl::StrCat("outer_product_mean.", name)});
  }
  for (const char* part : {"tri_mul_out", "tri_mul_in"}) {
    for (const char* name : {"layer_norm_in", "linear_a_g", "linear_a_p", "linear_b_g",
                             "linear_b_p", "layer_norm_out", "linear_z", "linear_g"}) {
      add({absl::StrCat(part, ".", name)});
    }
  }
  for (const char* part : {"tri_att_start", "tri_att_end"}) {
    add({absl::StrCat(part, ".layer_norm")});
    expected.push_back(absl::StrCat(part, ".linear.weight"));
    AddHeads(part, expected);
  }
  add({"mlp_pair.mlp.0", "mlp_pair.mlp.1", "mlp_pair.mlp.3"});
  const auto block = MakeBlock(OnMeta());
  EXPECT_THAT(block->named_parameters().keys(), ::testing::UnorderedElementsAreArray(expected));
  EXPECT_TRUE(block->buffers().empty());
}

// An operator that takes parameters, or views of them, and is not called by another one that does.
struct Use {
  std::string name;                     // And the sizes of all its inputs.
  std::vector<std::string> parameters;  // In the order of its inputs.
};

// What the callbacks below fill, which are plain functions.
struct Uses {
  std::map<const c10::StorageImpl*, std::string> parameters;
  std::vector<Use> uses;
  bool is_inside = false;  // Of an operator that is in `uses`.
};
thread_local Uses* t_uses = nullptr;

struct IsUse : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> BeginOperator(const at::RecordFunction& function) {
  if (t_uses->is_inside) return nullptr;
  Use use = {.name = function.name(), .parameters = {}};
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const Tensor& tensor = input.toTensor();
    absl::StrAppend(&use.name, " [", absl::StrJoin(tensor.sizes(), ", "), "]");
    const auto found = t_uses->parameters.find(tensor.storage().unsafeGetStorageImpl());
    if (found != t_uses->parameters.end()) use.parameters.push_back(found->second);
  }
  if (use.parameters.empty()) return nullptr;
  t_uses->uses.push_back(std::move(use));
  t_uses->is_inside = true;
  return std::make_unique<IsUse>();
}

void EndOperator(const at::RecordFunction&, at::ObserverContext* begun) {
  if (begun != nullptr) t_uses->is_inside = false;
}

// Returns the uses of a step, forward and backward.
std::vector<Use> UsesOfStep(const PairBlock& block, const MsaAndPair& in) {
  Uses uses;
  for (const auto& parameter : block.named_parameters()) {
    uses.parameters[parameter.value().storage().unsafeGetStorageImpl()] = parameter.key();
  }
  t_uses = &uses;
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(BeginOperator, EndOperator)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  // Also where a step throws.
  const absl::Cleanup stop = [&] { at::removeCallback(handle); };
  const MsaAndPair out = block.Forward(in);
  torch::autograd::backward({out.msa, out.pair},
                            {torch::ones_like(out.msa), torch::ones_like(out.pair)});
  return std::move(uses.uses);
}

TEST(PairTrunkTest, ParametersAreInTheOrderOfFirstUse) {
  const auto block = MakeBlock(torch::kFloat32);
  std::vector<std::string> first_uses;
  for (const Use& use : UsesOfStep(*block, Inputs(torch::kFloat32))) {
    for (const std::string& parameter : use.parameters) {
      if (std::ranges::count(first_uses, parameter) == 0) first_uses.push_back(parameter);
    }
  }
  EXPECT_THAT(block->named_parameters().keys(), ::testing::ElementsAreArray(first_uses));
}

TEST(PairTrunkTest, AStepOnMetaUsesParametersAsOnTheCpu) {
  RegisterMetaKernels();
  for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    const std::vector<Use> expected = UsesOfStep(*MakeBlock(type), Inputs(type));
    const auto block = MakeBlock(OnMeta().dtype(type));
    const MsaAndPair in = Inputs(OnMeta().dtype(type));
    const std::vector<Use> uses = UsesOfStep(*block, in);
    ASSERT_EQ(uses.size(), expected.size());
    EXPECT_GT(uses.size(), block->parameters().size());  // Backward is in it, too.
    for (size_t i = 0; i < uses.size(); ++i) {
      EXPECT_EQ(uses[i].name, expected[i].name) << i;
      EXPECT_EQ(uses[i].parameters, expected[i].parameters) << uses[i].name;
    }
    EXPECT_TRUE(in.msa.grad().is_meta());
    EXPECT_EQ(in.msa.grad().sizes(), in.msa.sizes());
    EXPECT_EQ(in.pair.grad().sizes(), in.pair.sizes());
    for (const auto& parameter : block->named_parameters()) {
      ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
      EXPECT_EQ(parameter.value().grad().sizes(), parameter.value().sizes()) << parameter.key();
    }
  }
}

TEST(PairTrunkTest, TheSameInputsGiveTheSameBits) {
  const auto block = MakeBlock(torch::kFloat32);
  std::vector<Tensor> results[2];
  for (uint64_t run = 0; run < 2; ++run) {
    block->zero_grad();
    const MsaAndPair in = Inputs(torch::kFloat32);
    torch::manual_seed(run);  // Nothing is drawn.
    const Tensor msa = in.msa.detach().clone();
    const Tensor pair = in.pair.detach().clone();
    const MsaAndPair out = block->Forward(in);
    torch::autograd::backward({out.msa, out.pair},
                              {torch::ones_like(out.msa), torch::ones_like(out.pair)});
    EXPECT_TRUE(in.msa.equal(msa));
    EXPECT_TRUE(in.pair.equal(pair));
    results[run] = {out.msa.detach(), out.pair.detach(), in.msa.grad(), in.pair.grad()};
    for (const Tensor& parameter : block->parameters()) results[run].push_back(parameter.grad());
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
  }
}

// Each part changes an output, so each parameter has a gradient that is not zero, but for a bias
// that adds the same to all scores of a head.
TEST(PairTrunkTest, EachParameterHasAGradient) {
  const auto block = MakeBlock(torch::kFloat64);
  const MsaAndPair out = block->Forward(Inputs(torch::kFloat64));
  (out.msa.square().sum() + out.pair.square().sum()).backward();
  for (const auto& parameter : block->named_parameters()) {
    if (parameter.key() == "msa_att_row.layer_norm_z.bias") continue;
    EXPECT_GT(parameter.value().grad().abs().max().item<double>(), 1e-6) << parameter.key();
  }
}

std::string ErrorOf(const PairBlock& block, MsaAndPair in) {
  try {
    block.Forward(std::move(in));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST(PairTrunkTest, InputsThatDoNotFitAreRefused) {
  const auto block = MakeBlock(torch::kFloat32);
  const Tensor msa = torch::zeros({kBatch, kSequences, kResidues, 12});
  EXPECT_EQ(ErrorOf(*block, {msa, torch::zeros({kBatch, kResidues, kResidues, 8})}), "none");
  EXPECT_THAT(ErrorOf(*block, {msa[0], torch::zeros({kBatch, kResidues, kResidues, 8})}),
              HasSubstr("an alignment of sizes [4, 5, 12]"));
  EXPECT_THAT(ErrorOf(*block, {torch::zeros({kBatch, kSequences, kResidues, 1}),
                               torch::zeros({kBatch, kResidues, kResidues, 8})}),
              HasSubstr("[batch, sequences, residues, 12] is wanted"));
  // A size of 1 would be repeated.
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{1, kResidues, kResidues, 8},
                                         {kBatch, 1, 1, 8},
                                         {kBatch, kResidues, kResidues + 1, 8},
                                         {kBatch, kResidues, kResidues}}) {
    EXPECT_THAT(ErrorOf(*block, {msa, torch::zeros(sizes)}),
                HasSubstr("where [2, 5, 5, 8] is wanted"));
  }
}

}  // namespace
}  // namespace gemini::trainer
