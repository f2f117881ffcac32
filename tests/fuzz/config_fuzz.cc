// SPDX-License-Identifier: Apache-2.0
// The config.json of a model, for the task that it says, or one that was asked for.
// Input: one byte, which task is asked for and whether the data have labels of their own; then the
//        text.
// Holds: a config that was accepted gives a model whose sizes can be multiplied, and a task that
//        its family has; a classification has labels, with a name for each or none. The same text
//        gives the same.
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "trainer/families/families.h"
#include "trainer/families/hf_config.h"
#include "trainer/families/parameter_count.h"

namespace gemini::trainer {
namespace {

// A byte's low half says which task is asked for; the one past the last asks for none.
constexpr uint8_t kHasLabels = 16;
constexpr char kNoTask = static_cast<char>(std::size(kTaskNames));

TaskWish WishOf(uint8_t byte) {
  TaskWish wish;
  const size_t task = (byte % kHasLabels) % (std::size(kTaskNames) + 1);
  if (task < std::size(kTaskNames)) wish.name = std::string(kTaskNames[task]);
  if ((byte & kHasLabels) != 0) {
    wish.labels = {.kind = TaskKind::kSequenceClassification,
                   .problem = ProblemType::kMultiLabel,
                   .num_labels = 2,
                   .names = {"one", "two"}};
  }
  return wish;
}

// Returns whether the config was accepted.
bool Run(const TaskWish& wish, absl::string_view text) {
  const auto config = ParseHfConfig(text, "fuzzed", wish);
  if (!config.ok()) {
    GEMINI_CHECK(!config.status().message().empty());
    return false;
  }
  const ModelSpec& spec = config->spec;
  GEMINI_CHECK(config->json == text);
  GEMINI_CHECK(!config->model_class.empty());
  GEMINI_CHECK(wish.name == "auto" || NameOf(spec.task.kind) == wish.name);
  GEMINI_CHECK(spec.vocab_size > 0 || spec.image.has_value());
  GEMINI_CHECK(spec.width > 0 && spec.num_blocks > 0);
  GEMINI_CHECK(spec.attention.num_heads > 0 && spec.attention.num_kv_heads > 0 &&
               spec.attention.num_heads % spec.attention.num_kv_heads == 0);
  GEMINI_CHECK(NumParameters(spec) > 0);
  if (!spec.task.predicts_tokens()) {
    const int64_t num_labels = spec.task.num_labels;
    GEMINI_CHECK(num_labels > 0 && num_labels <= kMostLabels);
    GEMINI_CHECK(spec.task.names.empty() ||
                 static_cast<int64_t>(spec.task.names.size()) == num_labels);
  }
  const auto again = ParseHfConfig(text, "fuzzed", wish);
  GEMINI_CHECK(again.ok() && again->spec.task == spec.task);
  GEMINI_CHECK(again->unknown_keys == config->unknown_keys);
  return true;
}

bool RunInput(absl::string_view input) {
  return Run(WishOf(static_cast<uint8_t>(input[0])), input.substr(1));
}

}  // namespace
}  // namespace gemini::trainer

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  constexpr char kSmall[] =
      R"("vocab_size":64,"hidden_size":16,"num_hidden_layers":2,"num_attention_heads":2,)"
      R"("num_key_value_heads":2,"intermediate_size":32,"pad_token_id":1)";
  constexpr char kLabels[] =
      R"(,"id2label":{"0":"no","1":"yes"},"problem_type":"single_label_classification"})";
  std::vector<std::string> seeds;
  for (const trainer::Family& family : trainer::Families()) {
    for (const absl::string_view task : family.classes) {
      if (task.empty()) continue;
      seeds.push_back(absl::StrCat(std::string(1, trainer::kNoTask), R"({"model_type":")",
                                   family.model_type, R"(","architectures":[")", task, R"("],)",
                                   kSmall, kLabels));
    }
  }
  seeds.push_back(absl::StrCat(std::string(1, '\2' + 16), R"({"model_type":"bert",)", kSmall,
                               R"(,"num_labels":3})"));
  for (const std::string& seed : seeds) GEMINI_CHECK(trainer::RunInput(seed));
  return seeds;
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  gemini::trainer::RunInput(gemini::fuzz::BytesOf(data, size));
  return 0;
}
