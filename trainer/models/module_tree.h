// SPDX-License-Identifier: Apache-2.0
// Registers modules below dotted names, so that named_parameters() has the names of the files.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "torch/nn/module.h"

namespace gemini::trainer {

// A level of the tree that is a name alone: "transformer" in "transformer.wte.weight".
class ModuleGroup : public torch::nn::Module {};

// Returns the level above the last of `words`. Levels that are not there yet are made.
inline torch::nn::Module& LevelAbove(torch::nn::Module& root,
                                     const std::vector<std::string>& words) {
  torch::nn::Module* level = &root;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const auto children = level->named_children();
    const std::shared_ptr<torch::nn::Module>* const found = children.find(words[i]);
    level = found != nullptr
                ? found->get()
                : level->register_module(words[i], std::make_shared<ModuleGroup>()).get();
  }
  return *level;
}

// Registers `child` below `root` as the next one at `name`, which is not taken, and returns it.
template <typename T>
std::shared_ptr<T> AddModule(torch::nn::Module& root, absl::string_view name,
                             std::shared_ptr<T> child) {
  const std::vector<std::string> words = absl::StrSplit(name, '.');
  return LevelAbove(root, words).register_module(words.back(), std::move(child));
}

// Registers a parameter likewise.
inline void AddParameter(torch::nn::Module& root, absl::string_view name,
                         const torch::Tensor& parameter) {
  const std::vector<std::string> words = absl::StrSplit(name, '.');
  LevelAbove(root, words).register_parameter(words.back(), parameter, parameter.requires_grad());
}

}  // namespace gemini::trainer
