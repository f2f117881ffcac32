// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/hf_config.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/families/config_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;  // Real ones are below 100 KiB.
constexpr int kMaxDepth = 64;

// Keys that say nothing about the arithmetic of training: what a file is, how text is generated,
// and what results look like.
constexpr const char* kHarmlessKeys[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "model_max_length",
    "model_type",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

std::vector<std::string> UnknownKeys(const ConfigKeys& keys) {
  std::vector<std::string> unknown = keys.UnreadKeys();
  std::erase_if(unknown, [](const std::string& key) {
    return std::ranges::find(kHarmlessKeys, key) != std::ranges::end(kHarmlessKeys);
  });
  return unknown;
}

// Gives the spec a task, and the head that the task needs in place of others.
void SetTask(TaskSpec task, ModelSpec& spec) {
  spec.task = std::move(task);
  LayerNames& names = spec.layers;
  std::vector<std::string>& heads = spec.files.own_heads;
  if (spec.task.predicts_tokens()) {
    if (!spec.tied_head || spec.head_bias) heads = {names.head + "."};
    return;
  }
  if (!spec.classifier.has_value()) {  // As transformers classifies with a causal model.
    spec.classifier = ClassifierSpec();
    names.classifier = "score";
  }
  if (spec.task.kind == TaskKind::kDistogram) spec.task.num_labels = spec.pair_trunk->num_bins;
  // As transformers: only the loss of a causal model includes its routers'.
  if (spec.experts.has_value()) spec.experts->router_loss_coefficient.reset();
  heads = {names.classifier + "."};
  if (!names.pooler.empty()) heads.push_back(names.pooler + ".");
  spec.tied_head = false;
  spec.files.head.clear();
}

// A model with a vision part has its text part's config inside.
std::string AdviceFor(const Json& json) {
  const auto text = json.find("text_config");
  if (text == json.end() || !text->is_object()) return "";
  return "; its text_config may be one of these: save the text model alone, with that as its "
         "config.json";
}

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json_text, absl::string_view where,
                                       const TaskWish& wish) {
  // A tree that is too deep is cut while it is parsed, so that nothing recurses into it later.
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  const Json json = Json::parse(json_text.begin(), json_text.end(), limit_depth,
                                /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || too_deep) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": not a JSON object"));
  }
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": has no model_type"));
  }
  const std::string& name = type->get_ref<const std::string&>();
  const absl::Span<const Family> families = Families();
  const auto family = std::ranges::find(families, name, &Family::model_type);
  if (family == families.end()) {
    return absl::UnimplementedError(absl::StrCat(
        where, ": unsupported model_type '", absl::CHexEscape(name.substr(0, 100)),
        "'; supported are ",
        absl::StrJoin(
            families, ", ",
            [](std::string* out, const Family& one) { absl::StrAppend(out, one.model_type); }),
        AdviceFor(json)));
  }
  GEMINI_ASSIGN_OR_RETURN(TaskChoice choice, ChooseTask(json, where, *family, wish));
  ConfigKeys keys(json, where);
  HfConfig config = {.model_type = name,
                     .model_class = std::move(choice.model_class),
                     .is_new_task = choice.is_new,
                     .names_labels = choice.names_labels,
                     .spec = family->make_spec(keys),
                     .json = std::string(json_text)};
  SetTask(std::move(choice.task), config.spec);
  keys.MustBeOff("tf_legacy_loss");
  GEMINI_RETURN_IF_ERROR(keys.status());
  config.unknown_keys = UnknownKeys(keys);
  return config;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& directory, const TaskWish& wish) {
  const std::string path = absl::StrCat(directory, "/config.json");
  struct stat status;
  if (::stat(directory.c_str(), &status) != 0) {
    return ErrnoStatus(errno, absl::StrCat("model directory ", directory));
  }
  if (!S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("model ", directory, " is no directory"));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ParseHfConfig(text, path, wish);
}

std::string TitleOf(const std::string& directory, const HfConfig& config) {
  return absl::StrCat(directory, " (", config.model_type, ", ", NameOf(config.spec.task.kind), ")");
}

}  // namespace gemini::trainer
