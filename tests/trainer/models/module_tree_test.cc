// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/module_tree.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

class OneWeight : public torch::nn::Module {
 public:
  OneWeight() { register_parameter("weight", torch::zeros({1})); }
};

std::vector<std::string> NamesOf(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.key());
  return names;
}

TEST(ModuleTreeTest, LevelsAreMadeOnceAndNamesKeepTheirOrder) {
  ModuleGroup root;
  AddModule(root, "h.attn.in", std::make_shared<OneWeight>());
  AddModule(root, "h.attn.out", std::make_shared<OneWeight>());
  AddModule(root, "alone", std::make_shared<OneWeight>());
  EXPECT_THAT(NamesOf(root),
              ::testing::ElementsAre("h.attn.in.weight", "h.attn.out.weight", "alone.weight"));
}

TEST(ModuleTreeTest, AModuleMayHaveOthersBelowItAndANameIsTakenOnce) {
  ModuleGroup root;
  const auto block = AddModule(root, "h.0", std::make_shared<OneWeight>());
  AddModule(root, "h.0.norm", std::make_shared<OneWeight>());
  EXPECT_THAT(NamesOf(*block), ::testing::ElementsAre("weight", "norm.weight"));
  EXPECT_THROW(AddModule(root, "h.0", std::make_shared<OneWeight>()), c10::Error);
}

}  // namespace
}  // namespace gemini::trainer
