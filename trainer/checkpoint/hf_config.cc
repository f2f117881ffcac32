// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_config.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;  // Real ones are below 100 KiB.
// Sizes below it: products of two of them, times an element's bytes, stay in 63 bits.
constexpr int64_t kMaxSize = (int64_t{1} << 28) - 1;
constexpr int kMaxDepth = 64;

struct ActivationName {
  absl::string_view name;
  Activation activation;
};
// The names of transformers. gelu_new and gelu_pytorch_tanh are one function there, computed in two
// ways; we use the fused one, which keeps one tensor for backward instead of four.
constexpr std::array<ActivationName, 5> kActivations = {{
    {"relu", Activation::kRelu},
    {"gelu", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
}};

// Reads the keys of one config.json and remembers the first that is wrong.
class Keys {
 public:
  Keys(const Json& json, absl::string_view where) : json_(json), where_(where) {}

  const absl::Status& status() const { return status_; }

  // Each reads the first of `names` that is there and not null, and else leaves the value alone.
  void Size(std::initializer_list<const char*> names, int64_t& value, int64_t minimum = 1) {
    const auto [name, found] = Find(names);
    if (found == nullptr) return;
    if (!found->is_number_integer() || found->get<int64_t>() < minimum || *found > Json(kMaxSize)) {
      return Refuse(name, *found, absl::StrCat("a whole number from ", minimum, " to ", kMaxSize));
    }
    value = found->get<int64_t>();
  }
  void Probability(const char* key, double& value) {
    const auto [name, found] = Find({key});
    if (found == nullptr) return;
    if (!found->is_number() || !(found->get<double>() >= 0 && found->get<double>() < 1)) {
      return Refuse(name, *found, "a number from 0 to below 1");
    }
    value = found->get<double>();
  }
  void Positive(const char* key, double& value) {
    const auto [name, found] = Find({key});
    if (found == nullptr) return;
    if (!found->is_number() || !(found->get<double>() > 0) ||
        !std::isfinite(found->get<double>())) {
      return Refuse(name, *found, "a number above 0");
    }
    value = found->get<double>();
  }
  void Flag(const char* key, bool& value) {
    const auto [name, found] = Find({key});
    if (found == nullptr) return;
    if (!found->is_boolean()) return Refuse(name, *found, "true or false");
    value = found->get<bool>();
  }
  void ActivationKey(const char* key, Activation& value) {
    const auto [name, found] = Find({key});
    if (found == nullptr) return;
    if (!found->is_string()) return Refuse(name, *found, "the name of an activation");
    for (const ActivationName& entry : kActivations) {
      if (found->get_ref<const std::string&>() == entry.name) {
        value = entry.activation;
        return;
      }
    }
    Unsupported(absl::StrCat(
        "activation ", Print(*found), "; supported are ",
        absl::StrJoin(kActivations, ", ", [](std::string* out, const ActivationName& entry) {
          absl::StrAppend(out, entry.name);
        })));
  }
  // Refuses an option that we lack unless it is absent, null, false or 0.
  void MustBeOff(const char* key) {
    const auto [name, found] = Find({key});
    if (found == nullptr || *found == Json(false)) return;
    if (found->is_number() && found->get<double>() == 0) return;
    Unsupported(absl::StrCat(name, " = ", Print(*found), "; only models without it"));
  }
  void MustDivide(absl::string_view what, int64_t whole, absl::string_view by, int64_t parts) {
    if (!status_.ok() || whole % parts == 0) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, ": ", what, " ", whole, " is not divisible by ", by, " ", parts));
  }

 private:
  static std::string Print(const Json& value) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 100 ? text : absl::StrCat(text.substr(0, 100), "...");
  }
  std::pair<const char*, const Json*> Find(std::initializer_list<const char*> names) {
    if (!status_.ok()) return {"", nullptr};
    for (const char* name : names) {
      const auto found = json_.find(name);
      if (found != json_.end() && !found->is_null()) return {name, &*found};
    }
    return {"", nullptr};
  }
  void Refuse(absl::string_view name, const Json& value, absl::string_view expected) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, ": ", name, " = ", Print(value), ", expected ", expected));
  }
  void Unsupported(absl::string_view what) {
    status_ = absl::UnimplementedError(absl::StrCat(where_, ": unsupported ", what));
  }

  const Json& json_;
  const absl::string_view where_;
  absl::Status status_;
};

absl::StatusOr<Gpt2Config> ParseGpt2(const Json& json, absl::string_view where) {
  Gpt2Config config;
  Keys keys(json, where);
  keys.Size({"vocab_size"}, config.vocab_size);
  keys.Size({"n_positions", "max_position_embeddings"}, config.n_positions);
  keys.Size({"n_embd", "hidden_size"}, config.n_embd);
  keys.Size({"n_layer", "num_hidden_layers"}, config.n_layer);
  keys.Size({"n_head", "num_attention_heads"}, config.n_head);
  config.n_inner = 4 * config.n_embd;
  keys.Size({"n_inner"}, config.n_inner);
  keys.ActivationKey("activation_function", config.activation);
  keys.Probability("resid_pdrop", config.resid_pdrop);
  keys.Probability("embd_pdrop", config.embd_pdrop);
  keys.Probability("attn_pdrop", config.attn_pdrop);
  keys.Positive("layer_norm_epsilon", config.layer_norm_epsilon);
  keys.Flag("scale_attn_weights", config.scale_attn_weights);
  keys.Flag("scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx);
  // In fp32 reorder_and_upcast_attn changes nothing, so it is not refused.
  keys.Flag("tie_word_embeddings", config.tie_word_embeddings);
  keys.MustBeOff("add_cross_attention");
  keys.MustBeOff("quantization_config");
  keys.MustDivide("n_embd", config.n_embd, "n_head", config.n_head);
  GEMINI_RETURN_IF_ERROR(keys.status());
  return config;
}

absl::StatusOr<OptConfig> ParseOpt(const Json& json, absl::string_view where) {
  OptConfig config;
  Keys keys(json, where);
  keys.Size({"vocab_size"}, config.vocab_size);
  keys.Size({"max_position_embeddings"}, config.max_position_embeddings);
  keys.Size({"hidden_size"}, config.hidden_size);
  keys.Size({"num_hidden_layers"}, config.num_hidden_layers);
  keys.Size({"num_attention_heads"}, config.num_attention_heads);
  keys.Size({"ffn_dim"}, config.ffn_dim);
  config.word_embed_proj_dim = config.hidden_size;
  keys.Size({"word_embed_proj_dim"}, config.word_embed_proj_dim);
  // Absent means 1, the default of transformers; null means none.
  if (const auto pad = json.find("pad_token_id"); pad != json.end() && pad->is_null()) {
    config.pad_token_id = -1;
  }
  keys.Size({"pad_token_id"}, config.pad_token_id, /*minimum=*/0);
  keys.ActivationKey("activation_function", config.activation);
  keys.Probability("dropout", config.dropout);
  keys.Probability("attention_dropout", config.attention_dropout);
  keys.Flag("do_layer_norm_before", config.do_layer_norm_before);
  keys.Flag("_remove_final_layer_norm", config.remove_final_layer_norm);
  keys.Flag("enable_bias", config.enable_bias);
  keys.Flag("layer_norm_elementwise_affine", config.layer_norm_elementwise_affine);
  keys.Flag("tie_word_embeddings", config.tie_word_embeddings);
  keys.MustBeOff("layerdrop");
  keys.MustBeOff("quantization_config");
  keys.MustDivide("hidden_size", config.hidden_size, "num_attention_heads",
                  config.num_attention_heads);
  GEMINI_RETURN_IF_ERROR(keys.status());
  if (config.pad_token_id >= config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": pad_token_id ", config.pad_token_id,
                                                   " is past vocab_size ", config.vocab_size));
  }
  return config;
}

}  // namespace

absl::string_view HfConfig::model_type() const {
  return std::holds_alternative<Gpt2Config>(model) ? "gpt2" : "opt";
}
int64_t HfConfig::vocab_size() const {
  return std::visit([](const auto& config) { return config.vocab_size; }, model);
}
int64_t HfConfig::max_sequence() const {
  if (const auto* gpt2 = std::get_if<Gpt2Config>(&model)) return gpt2->n_positions;
  return std::get<OptConfig>(model).max_position_embeddings;
}
int64_t HfConfig::width() const {
  const auto* gpt2 = std::get_if<Gpt2Config>(&model);
  return gpt2 != nullptr ? gpt2->n_embd : std::get<OptConfig>(model).hidden_size;
}

int64_t HfConfig::num_blocks() const {
  const auto* gpt2 = std::get_if<Gpt2Config>(&model);
  return gpt2 != nullptr ? gpt2->n_layer : std::get<OptConfig>(model).num_hidden_layers;
}

bool HfConfig::tie_word_embeddings() const {
  return std::visit([](const auto& config) { return config.tie_word_embeddings; }, model);
}

absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json_text, absl::string_view where) {
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
  HfConfig config;
  config.json = std::string(json_text);
  const std::string& name = type->get_ref<const std::string&>();
  if (name == "gpt2") {
    GEMINI_ASSIGN_OR_RETURN(config.model, ParseGpt2(json, where));
  } else if (name == "opt") {
    GEMINI_ASSIGN_OR_RETURN(config.model, ParseOpt(json, where));
  } else {
    return absl::UnimplementedError(absl::StrCat(where, ": unsupported model_type '",
                                                 absl::CHexEscape(name.substr(0, 100)),
                                                 "'; supported are gpt2, opt"));
  }
  return config;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/config.json");
  struct stat status;
  if (::stat(directory.c_str(), &status) != 0) {
    return ErrnoStatus(errno, absl::StrCat("model directory ", directory));
  }
  if (!S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("model ", directory, " is no directory"));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ParseHfConfig(text, path);
}

}  // namespace gemini::trainer
