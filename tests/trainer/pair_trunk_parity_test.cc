// SPDX-License-Identifier: Apache-2.0
// Blocks over an alignment and its pairs against transformers and the paper: what
// make_pair_trunk.py left in GEMINI_PAIR_TRUNK_DIR has parameters by name, inputs, outputs and
// gradients, which were computed in fp64.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gemini/files/safetensors_format.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/pair_trunk.h"
#include "trainer/models/plain_layers.h"

namespace gemini::trainer {
namespace {

// By the largest value. fp32 against fp64: some units of 2^-24, grown by sums and layers.
constexpr double kTolerance = 1e-5;

torch::Tensor ReadTensor(const SafetensorsReader& reader, const std::string& name) {
  const SafetensorsTensor* tensor = reader.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  torch::Tensor values = torch::empty(tensor->shape, torch::kFloat32);
  EXPECT_OK(reader.ReadRaw(
      *tensor, 0,
      absl::MakeSpan(static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes())));
  return values;
}

double Largest(const torch::Tensor& x) { return x.abs().max().item<double>(); }

// By the largest value of `theirs`, or by `least` if that is more.
double RelativeError(const torch::Tensor& ours, const torch::Tensor& theirs, double least = 0) {
  EXPECT_EQ(ours.sizes(), theirs.sizes());
  if (ours.sizes() != theirs.sizes()) return 1;
  const double largest = std::max(Largest(theirs), least);
  const double difference = Largest(ours - theirs);
  return largest == 0 ? difference : difference / largest;
}

int64_t SizeIn(const SafetensorsReader& reader, const char* name) {
  int64_t value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(reader.metadata().at(name), &value)) << name;
  return value;
}

PairTrunkSpec SpecOf(const SafetensorsReader& reader) {
  const auto size = [&](const char* name) { return SizeIn(reader, name); };
  const int64_t pair_width = size("pair_width");
  const int64_t triangle_heads = size("triangle_num_heads");
  return {.msa_width = size("msa_width"),
          .pair_width = pair_width,
          .msa_heads = {.num_heads = size("msa_num_heads"), .head_size = size("msa_head_size")},
          .triangle_heads = {.num_heads = triangle_heads, .head_size = pair_width / triangle_heads},
          .triangle_width = pair_width,
          .outer_width = size("outer_width"),
          .transition_factor = size("transition_factor")};
}

TEST(PairTrunkParityTest, OutputsAndGradientsAreThoseOfTransformersAndThePaper) {
  const char* const directory = std::getenv("GEMINI_PAIR_TRUNK_DIR");
  if (directory == nullptr) GTEST_SKIP() << "GEMINI_PAIR_TRUNK_DIR is not set: run it by ctest";
  torch::set_num_threads(1);
  std::ifstream list(absl::StrCat(directory, "/cases.txt"));
  int num_cases = 0;
  double worst_output = 0;
  double worst_gradient = 0;
  for (std::string name; std::getline(list, name); ++num_cases) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(
        const SafetensorsReader reference,
        SafetensorsReader::Open(absl::StrCat(directory, "/", name, ".safetensors")));
    const PairTrunkSpec spec = SpecOf(reference);
    PlainLayers layers(torch::kFloat32);
    ModuleGroup root;
    std::vector<std::shared_ptr<PairBlock>> blocks;
    for (int64_t i = 0; i < SizeIn(reference, "num_blocks"); ++i) {
      blocks.push_back(AddModule(root, absl::StrCat("trunk.blocks.", i),
                                 std::make_shared<PairBlock>(spec, layers)));
    }
    const auto parameters = root.named_parameters();
    // Inputs and outputs with their gradients are eight, and each parameter has two: none is left.
    ASSERT_EQ(2 * parameters.size() + 8, reference.tensors().size());
    for (const auto& parameter : parameters) {
      const torch::NoGradGuard no_grad;
      const torch::Tensor values = ReadTensor(reference, "parameter." + parameter.key());
      ASSERT_TRUE(values.defined());
      ASSERT_EQ(parameter.value().sizes(), values.sizes()) << parameter.key();
      torch::Tensor(parameter.value()).copy_(values);
    }
    const MsaAndPair in = {.msa = ReadTensor(reference, "msa").requires_grad_(),
                           .pair = ReadTensor(reference, "pair").requires_grad_()};
    MsaAndPair out = in;
    for (const auto& block : blocks) out = block->Forward(out);
    for (const double error : {RelativeError(out.msa, ReadTensor(reference, "msa_out")),
                               RelativeError(out.pair, ReadTensor(reference, "pair_out"))}) {
      EXPECT_LE(error, kTolerance);
      worst_output = std::max(worst_output, error);
    }
    torch::autograd::backward({out.msa, out.pair}, {ReadTensor(reference, "gradient_of_msa_out"),
                                                    ReadTensor(reference, "gradient_of_pair_out")});
    const auto check = [&](const std::string& of, const torch::Tensor& gradient,
                           const torch::Tensor& expected, double least = 0) {
      ASSERT_TRUE(gradient.defined()) << of;
      const double error = RelativeError(gradient, expected, least);
      EXPECT_LE(error, kTolerance) << of;
      worst_gradient = std::max(worst_gradient, error);
    };
    check("msa", in.msa.grad(), ReadTensor(reference, "gradient_of_msa"));
    check("pair", in.pair.grad(), ReadTensor(reference, "gradient_of_pair"));
    for (const auto& parameter : parameters) {
      // This bias adds the same to all scores of a head, which leaves their softmax as it is: its
      // gradient is 0 but for rounding.
      const absl::string_view no_gradient = "layer_norm_z.bias";
      double least = 0;
      if (absl::EndsWith(parameter.key(), no_gradient)) {
        const std::string norm =
            parameter.key().substr(0, parameter.key().size() - no_gradient.size());
        least = Largest(ReadTensor(reference, absl::StrCat("gradient.", norm, "linear_z.weight")));
      }
      check(parameter.key(), parameter.value().grad(),
            ReadTensor(reference, "gradient." + parameter.key()), least);
    }
  }
  EXPECT_EQ(num_cases, 3);
  std::cout << num_cases << " cases, largest relative error: outputs " << worst_output
            << ", gradients " << worst_gradient << "\n";
}

}  // namespace
}  // namespace gemini::trainer
