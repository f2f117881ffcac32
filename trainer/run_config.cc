// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_config.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gemini/byte_size.h"
#include "gemini/check.h"
#include "gemini/nearest_name.h"
#include "gemini/status_macros.h"
#include "toml++/toml.h"

namespace gemini::trainer {
namespace {

// 2^40 steps are what a commit word can count (gemini/commit_shm.h).
constexpr double kMaxSteps = 1099511627775.0;
// Sizes of a batch beyond these are typing errors: 2^20 sequences, 2^20 tokens.
constexpr double kMaxBatch = 1 << 20;
constexpr double kMaxBytes = 4611686018427387904.0;  // 2^62, as ParseByteSize.

std::vector<ConfigKey> MakeKeys() {
  using C = RunConfig;
  using K = KeyKind;
  using R = ResumeRule;
  std::vector<ConfigKey> keys;
  const auto add = [&keys](ConfigKey key) { keys.push_back(std::move(key)); };
  add({"model", K::kPath, &C::model, "DIR",
       "Hugging Face checkpoint to start from: config.json and safetensors"});
  add({"data", K::kPath, &C::data, "FILE.npy",
       "Tokens to train on: one dimension, uint16 or uint32"});
  add({"output", K::kPath, &C::output, "DIR",
       "Where checkpoints, run.toml and metrics go; made if need be", R::kNotStored});
  add({"steps", K::kCount, &C::steps, "N", "Optimizer steps in all", R::kGrow, 1, kMaxSteps});
  add({"batch", K::kCount, &C::batch, "N", "Sequences a micro-batch", R::kFixed, 1, kMaxBatch});
  add({"sequence", K::kCount, &C::sequence, "N",
       "Tokens a sequence; 0: as many as the model has positions, at most 1024", R::kFixed, 0,
       kMaxBatch});
  add({"accumulate", K::kCount, &C::accumulate, "N",
       "Micro-batches a step, their gradients averaged", R::kFixed, 1, kMaxBatch});
  add({"micro-batch-schedule",
       K::kChoice,
       &C::micro_batch_schedule,
       "NAME",
       "Order in a step: all of a micro-batch and then the next, or each block for all "
       "micro-batches, "
       "so that its parameters move once a step; recomputes as --recompute does",
       R::kFixed,
       0,
       0,
       {"horizontal", "vertical"}});
  add({"lr", K::kNumber, &C::lr, "X", "Learning rate after warm-up", R::kFixed, 0, 1e6});
  add({"schedule",
       K::kChoice,
       &C::schedule,
       "NAME",
       "Learning rate after warm-up over the steps: constant, linear to 0 or half a cosine to 0",
       R::kFixed,
       0,
       0,
       {"constant", "linear", "cosine"}});
  add({"warmup-steps", K::kCount, &C::warmup_steps, "N",
       "Steps over which the learning rate rises from 0", R::kFixed, 0, kMaxSteps});
  add({"optimizer",
       K::kChoice,
       &C::optimizer,
       "NAME",
       "adamw, adam (with L2), sgd with momentum, or layer-wise: lamb, lars",
       R::kFixed,
       0,
       0,
       {kOptimizerKindNames.begin(), kOptimizerKindNames.end()}});
  add({"beta1", K::kNumber, &C::beta1, "X", "adamw, adam, lamb: decay of the first moment",
       R::kFixed, 0, 1});
  add({"beta2", K::kNumber, &C::beta2, "X", "adamw, adam, lamb: decay of the second moment",
       R::kFixed, 0, 1});
  add({"epsilon", K::kNumber, &C::epsilon, "X",
       "adamw, adam, lamb: added to the root of the second moment", R::kFixed, 1e-30, 1});
  add({"momentum", K::kNumber, &C::momentum, "X", "sgd, lars: decay of the momentum", R::kFixed, 0,
       1});
  add({"trust-coefficient", K::kNumber, &C::trust_coefficient, "X",
       "lars: part of a layer's norm that a step may change", R::kFixed, 1e-12, 1e6});
  add({"weight-decay", K::kNumber, &C::weight_decay, "X",
       "Decay of parameters of two or more dimensions", R::kFixed, 0, 1e6});
  add({"clip", K::kNumber, &C::clip, "X",
       "Largest global norm of a step's gradient; 0: no clipping", R::kFixed, 0, 1e12});
  add({"recompute", K::kSwitch, &C::recompute, "",
       "Keep each block's input only and compute the rest again in backward; the numbers stay the "
       "same",
       R::kFree});
  add({"order",
       K::kChoice,
       &C::order,
       "NAME",
       "Order of the sequences: shuffled in each epoch, or sequential",
       R::kFixed,
       0,
       0,
       {"shuffled", "sequential"}});
  add({"seed", K::kCount, &C::seed, "N", "Of the data's order and of dropout", R::kFixed, 0,
       4294967295.0});
  add({"precision",
       K::kChoice,
       &C::precision,
       "NAME",
       "Of parameters, gradients and arithmetic; masters keep the fp32 values, and fp16 scales the "
       "loss",
       R::kFixed,
       0,
       0,
       {"fp32", "bf16", "fp16"}});
  add({"threads", K::kCount, &C::threads, "N",
       "Threads of one operator; 0: as many as Torch takes by itself", R::kFree, 0, 1024});
  add({"device-memory", K::kBytes, &C::device_memory, "SIZE",
       "DEVICE budget: parameters in use and all that operators allocate; auto: a quarter of the "
       "memory that is free",
       R::kFree, 1, kMaxBytes});
  add({"host-memory", K::kBytes, &C::host_memory, "SIZE",
       "HOST budget: parameters, gradients and moments; auto: all of them, or with --nvme half of "
       "the memory that is free if that is less",
       R::kFree, 1, kMaxBytes});
  add({"nvme", K::kNvme, &C::nvme, "DIR:SIZE",
       "Room on a disk for what HOST cannot hold; may be given several times", R::kFree});
  add({"chunk-size", K::kBytes, &C::chunk_size, "SIZE",
       "Unit of placement and transfer, a power of two from 64 KiB; auto: the one with the fastest "
       "step that is predicted",
       R::kFree, 65536, 1099511627776.0});
  add({"policy",
       K::kChoice,
       &C::policy,
       "NAME",
       "Which parameters lie on DEVICE when: planned, a fixed fraction of them, none, all, or "
       "those "
       "used last; the numbers stay the same",
       R::kFree,
       0,
       0,
       {"auto", "static", "cpu", "cuda", "online"}});
  add({"param-fraction", K::kFraction, &C::param_fraction, "X",
       "With --policy static: how much of the parameters stays on DEVICE", R::kFree});
  add({"optimizer-fraction", K::kFraction, &C::optimizer_fraction, "X",
       "With --policy static: how much of the optimizer states stays on DEVICE, and is updated "
       "there",
       R::kFree});
  add({"device-bandwidth", K::kBytesPerSecond, &C::device_bandwidth, "RATE",
       "Limit of the link between HOST and DEVICE, each direction, to study a machine that one "
       "does "
       "not have; 0: none",
       R::kFree, 1, kMaxBytes});
  add({"daemon", K::kPath, &C::daemon, "SOCKET",
       "Socket of a geminid; the memory flags are then what is asked of it", R::kFree});
  add({"space", K::kText, &C::space, "NAME",
       "Name that memstat shows; the output directory's name when not given", R::kFree});
  add({"metrics", K::kPath, &C::metrics, "FILE.jsonl",
       "One JSON object a step; OUTPUT/metrics.jsonl when not given", R::kFree});
  add({"eval-data", K::kPath, &C::eval_data, "FILE.npy",
       "Tokens to evaluate on: loss and perplexity", R::kFree});
  add({"eval-every", K::kCount, &C::eval_every, "N",
       "Steps between evaluations; 0: only behind the last step", R::kFree, 0, kMaxSteps});
  add({"save-every", K::kCount, &C::save_every, "N",
       "Steps between checkpoints; 0: only behind the last step", R::kFree, 0, kMaxSteps});
  add({"keep", K::kCount, &C::keep, "N", "Checkpoints that stay, the newest; 0: all", R::kFree, 0,
       1e9});
  add({"log-level",
       K::kChoice,
       &C::log_level,
       "NAME",
       "How much is told",
       R::kFree,
       0,
       0,
       {"debug", "info", "warning", "error"}});
  add({"resume", K::kSwitch, &C::resume, "",
       "Go on from the newest checkpoint of --output; keys that are not given are taken from its "
       "run.toml",
       R::kNotStored});
  add({"overwrite", K::kSwitch, &C::overwrite, "",
       "Start anew in an --output that is not empty: what a run left there is deleted",
       R::kNotStored});
  add({"reference", K::kSwitch, &C::reference, "",
       "The same training in plain memory, without session and budget: what the other must equal",
       R::kFree});
  return keys;
}

std::vector<absl::string_view> KeyNames() {
  std::vector<absl::string_view> names;
  for (const ConfigKey& key : ConfigKeys()) names.push_back(key.name);
  return names;
}

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

// Shortest text that reads back as the same double, and that TOML takes for a float.
std::string NumberText(double value) {
  std::string text = absl::StrFormat("%.15g", value);
  double back = 0;
  if (!absl::SimpleAtod(text, &back) || back != value) text = absl::StrFormat("%.17g", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string CountText(double value) { return absl::StrCat(static_cast<int64_t>(value)); }

absl::Status CheckCount(const ConfigKey& key, int64_t value, absl::string_view where) {
  if (static_cast<double>(value) < key.min || static_cast<double>(value) > key.max) {
    return Bad(where,
               absl::StrCat(value, " is not in ", CountText(key.min), " to ", CountText(key.max)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> AbsolutePath(absl::string_view text, absl::string_view where) {
  if (text.empty()) return std::string();
  if (text.find('\0') != absl::string_view::npos) return Bad(where, "a path holds a zero byte");
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(std::string(text), error);
  if (error) return Bad(where, absl::StrCat("no absolute path: ", error.message()));
  std::string normal = path.lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

absl::StatusOr<NvmeDirectory> ParseNvme(absl::string_view text, absl::string_view where) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return Bad(where, absl::StrCat("'", text, "' is not DIR:SIZE, such as /mnt/nvme:20GiB"));
  }
  NvmeDirectory directory;
  GEMINI_ASSIGN_OR_RETURN(directory.path, AbsolutePath(text.substr(0, colon), where));
  const absl::StatusOr<int64_t> size = ParseByteSize(text.substr(colon + 1));
  if (!size.ok()) return Bad(where, size.status().message());
  if (*size == 0) return Bad(where, absl::StrCat("'", text, "' gives no room"));
  directory.size_bytes = *size;
  return directory;
}

// The value as text for messages and comparison; byte sizes exactly.
std::string ValueText(const ConfigKey& key, const RunConfig& config) {
  switch (key.kind) {
    case KeyKind::kText:
    case KeyKind::kPath:
    case KeyKind::kChoice: {
      const std::string& text = config.*std::get<std::string RunConfig::*>(key.member);
      return text.empty() ? "(none)" : text;
    }
    case KeyKind::kCount:
      return absl::StrCat(config.*std::get<int64_t RunConfig::*>(key.member));
    case KeyKind::kBytes: {
      const int64_t bytes = config.*std::get<int64_t RunConfig::*>(key.member);
      return bytes == kAutoBytes ? "auto" : absl::StrCat(FormatByteSize(bytes), " (", bytes, ")");
    }
    case KeyKind::kBytesPerSecond: {
      const int64_t rate = config.*std::get<int64_t RunConfig::*>(key.member);
      return rate == 0 ? "0" : absl::StrCat(FormatByteSize(rate), "/s (", rate, ")");
    }
    case KeyKind::kNumber:
    case KeyKind::kFraction:
      return NumberText(config.*std::get<double RunConfig::*>(key.member));
    case KeyKind::kSwitch:
      return config.*std::get<bool RunConfig::*>(key.member) ? "true" : "false";
    case KeyKind::kNvme: {
      std::vector<std::string> parts;
      for (const NvmeDirectory& one :
           config.*std::get<std::vector<NvmeDirectory> RunConfig::*>(key.member)) {
        parts.push_back(absl::StrCat(one.path, ":", one.size_bytes));
      }
      return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
    }
  }
  return "";
}

// Turns a TOML value into what a flag would say, refusing a value of the wrong type.
absl::Status SetFromToml(const ConfigKey& key, const toml::node& node, absl::string_view where,
                         RunConfig& config) {
  const auto wrong = [&](absl::string_view wanted) {
    std::ostringstream type;
    type << node.type();
    return Bad(where, absl::StrCat("wants ", wanted, ", not this ", type.str()));
  };
  switch (key.kind) {
    case KeyKind::kText:
    case KeyKind::kPath:
    case KeyKind::kChoice:
      if (!node.is_string()) return wrong("a string");
      return SetKey(key, node.as_string()->get(), where, config);
    case KeyKind::kCount:
      if (!node.is_integer()) return wrong("a whole number");
      return SetKey(key, absl::StrCat(node.as_integer()->get()), where, config);
    case KeyKind::kNumber:
    case KeyKind::kFraction:
      if (node.is_integer()) {
        return SetKey(key, absl::StrCat(node.as_integer()->get()), where, config);
      }
      if (!node.is_floating_point()) return wrong("a number");
      return SetKey(key, NumberText(node.as_floating_point()->get()), where, config);
    case KeyKind::kSwitch:
      if (!node.is_boolean()) return wrong("true or false");
      return SetKey(key, node.as_boolean()->get() ? "true" : "false", where, config);
    case KeyKind::kBytes:
      if (node.is_integer()) {
        return SetKey(key, absl::StrCat(node.as_integer()->get()), where, config);
      }
      if (!node.is_string()) return wrong("a size such as \"64MiB\" or a number of bytes");
      return SetKey(key, node.as_string()->get(), where, config);
    case KeyKind::kBytesPerSecond:
      if (node.is_integer() && node.as_integer()->get() == 0)
        return SetKey(key, "0", where, config);
      if (!node.is_string()) return wrong("a rate such as \"12GiB/s\", or 0");
      return SetKey(key, node.as_string()->get(), where, config);
    case KeyKind::kNvme: {
      config.nvme.clear();
      if (node.is_string()) return SetKey(key, node.as_string()->get(), where, config);
      if (!node.is_array()) return wrong("an array of \"DIR:SIZE\"");
      for (const toml::node& element : *node.as_array()) {
        if (!element.is_string()) return wrong("an array of \"DIR:SIZE\"");
        GEMINI_RETURN_IF_ERROR(SetKey(key, element.as_string()->get(), where, config));
      }
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

std::string TomlText(const toml::value<std::string>& value) {
  std::ostringstream out;
  out << toml::toml_formatter{value, toml::format_flags::none};
  return out.str();
}

std::string TomlValue(const ConfigKey& key, const RunConfig& config) {
  switch (key.kind) {
    case KeyKind::kText:
    case KeyKind::kPath:
    case KeyKind::kChoice:
      return TomlText(
          toml::value<std::string>(config.*std::get<std::string RunConfig::*>(key.member)));
    case KeyKind::kBytes: {
      const int64_t bytes = config.*std::get<int64_t RunConfig::*>(key.member);
      return bytes == kAutoBytes ? "\"auto\"" : absl::StrCat(bytes);
    }
    case KeyKind::kBytesPerSecond: {
      const int64_t rate = config.*std::get<int64_t RunConfig::*>(key.member);
      return rate == 0 ? "0" : absl::StrCat("\"", rate, "B/s\"");
    }
    case KeyKind::kCount:
    case KeyKind::kNumber:
    case KeyKind::kFraction:
    case KeyKind::kSwitch:
      return ValueText(key, config);
    case KeyKind::kNvme: {
      std::vector<std::string> parts;
      for (const NvmeDirectory& one : config.nvme) {
        parts.push_back(
            TomlText(toml::value<std::string>(absl::StrCat(one.path, ":", one.size_bytes))));
      }
      return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
    }
  }
  return "";
}

}  // namespace

ElementType RunConfig::element() const {
  for (const ElementType type : kAllElementTypes) {
    if (ElementTypeName(type) == precision) return type;
  }
  GEMINI_CHECK(false);  // The key has its choices.
  return ElementType::kFp32;
}

OptimizerKind RunConfig::optimizer_kind() const {
  const std::optional<OptimizerKind> kind = OptimizerKindOf(optimizer);
  GEMINI_CHECK(kind.has_value());  // The key has its choices.
  return *kind;
}

absl::Span<const ConfigKey> ConfigKeys() {
  static const std::vector<ConfigKey>& keys = *new std::vector<ConfigKey>(MakeKeys());
  return keys;
}

absl::StatusOr<const ConfigKey*> FindKey(absl::string_view name, absl::string_view where) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.name == name) return &key;
  }
  const std::string suggestion = DidYouMean(name, KeyNames());
  return Bad(where, absl::StrCat("unknown key '", absl::CHexEscape(name), "'",
                                 suggestion.empty() ? "; --help lists all keys" : suggestion));
}

absl::Status SetKey(const ConfigKey& key, absl::string_view text, absl::string_view where,
                    RunConfig& config) {
  switch (key.kind) {
    case KeyKind::kText:
      if (key.name == "space" && !text.empty()) {
        const bool valid =
            text.size() <= 128 && text.find_first_not_of(
                                      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuv"
                                      "wxyz0123456789._-") == absl::string_view::npos;
        if (!valid) return Bad(where, "wants 1 to 128 characters of A-Z a-z 0-9 . _ -");
      }
      config.*std::get<std::string RunConfig::*>(key.member) = std::string(text);
      return absl::OkStatus();
    case KeyKind::kPath: {
      GEMINI_ASSIGN_OR_RETURN(config.*std::get<std::string RunConfig::*>(key.member),
                              AbsolutePath(text, where));
      return absl::OkStatus();
    }
    case KeyKind::kChoice:
      for (absl::string_view choice : key.choices) {
        if (choice != text) continue;
        config.*std::get<std::string RunConfig::*>(key.member) = std::string(text);
        return absl::OkStatus();
      }
      return Bad(where, absl::StrCat("'", absl::CHexEscape(text), "' is none of ",
                                     absl::StrJoin(key.choices, ", ")));
    case KeyKind::kCount: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) {
        return Bad(where, absl::StrCat("'", absl::CHexEscape(text), "' is not a whole number"));
      }
      GEMINI_RETURN_IF_ERROR(CheckCount(key, value, where));
      config.*std::get<int64_t RunConfig::*>(key.member) = value;
      return absl::OkStatus();
    }
    case KeyKind::kBytesPerSecond: {
      int64_t value = 0;
      if (text != "0") {
        absl::string_view size_text = text;
        const absl::StatusOr<int64_t> size = absl::ConsumeSuffix(&size_text, "/s")
                                                 ? ParseByteSize(size_text)
                                                 : absl::InvalidArgumentError("no '/s'");
        if (!size.ok()) {
          return Bad(where, absl::StrCat("'", absl::CHexEscape(text),
                                         "' is not a rate such as 12GiB/s, or 0 for no limit"));
        }
        value = *size;
        GEMINI_RETURN_IF_ERROR(CheckCount(key, value, where));
      }
      config.*std::get<int64_t RunConfig::*>(key.member) = value;
      return absl::OkStatus();
    }
    case KeyKind::kNumber:
    case KeyKind::kFraction: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || std::isnan(value)) {
        return Bad(where, absl::StrCat("'", absl::CHexEscape(text), "' is not a number"));
      }
      if (key.kind == KeyKind::kFraction && !(value >= 0 && value <= 1)) {
        return Bad(where, absl::StrCat(NumberText(value), " is not from 0 to 1"));
      }
      if (value < key.min || value >= key.max) {
        return Bad(where, absl::StrCat(NumberText(value), " is not at least ", NumberText(key.min),
                                       " and below ", NumberText(key.max)));
      }
      config.*std::get<double RunConfig::*>(key.member) = value;
      return absl::OkStatus();
    }
    case KeyKind::kSwitch:
      if (text != "true" && text != "false") {
        return Bad(where, absl::StrCat("'", absl::CHexEscape(text), "' is not true or false"));
      }
      config.*std::get<bool RunConfig::*>(key.member) = text == "true";
      return absl::OkStatus();
    case KeyKind::kBytes: {
      int64_t value = kAutoBytes;
      if (text != "auto") {
        const absl::StatusOr<int64_t> size = ParseByteSize(text);
        if (!size.ok()) return Bad(where, size.status().message());
        value = *size;
        GEMINI_RETURN_IF_ERROR(CheckCount(key, value, where));
        if (key.name == "chunk-size" && (value & (value - 1)) != 0) {
          return Bad(where, absl::StrCat(value, " bytes is not a power of two"));
        }
      }
      config.*std::get<int64_t RunConfig::*>(key.member) = value;
      return absl::OkStatus();
    }
    case KeyKind::kNvme: {
      GEMINI_ASSIGN_OR_RETURN(NvmeDirectory directory, ParseNvme(text, where));
      config.nvme.push_back(std::move(directory));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status ApplyToml(absl::string_view text, absl::string_view where, RunConfig& config) {
  toml::table table;
  try {
    table = toml::parse(std::string_view(text.data(), text.size()));
  } catch (const toml::parse_error& error) {
    return Bad(absl::StrCat(where, ":", error.source().begin.line),
               absl::StrCat("not TOML: ", std::string(error.description())));
  }
  for (const auto& [name, node] : table) {
    const std::string key_name(name.str());
    const std::string line = absl::StrCat(where, ":", name.source().begin.line);
    GEMINI_ASSIGN_OR_RETURN(const ConfigKey* key, FindKey(key_name, line));
    GEMINI_RETURN_IF_ERROR(SetFromToml(*key, node, absl::StrCat(line, ": ", key_name), config));
  }
  return absl::OkStatus();
}

absl::Status CheckRunConfig(const RunConfig& config) {
  const auto missing = [](absl::string_view name, absl::string_view example) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", name, " is missing: give it as a flag or in the file of --config, such as --", name,
        " ", example));
  };
  if (config.model.empty()) return missing("model", "models/gpt2");
  if (config.data.empty()) return missing("data", "tokens.npy");
  if (config.output.empty()) return missing("output", "runs/first");
  if (config.steps == 0) return missing("steps", "1000");
  if (config.warmup_steps > config.steps) {
    return absl::InvalidArgumentError(absl::StrCat("--warmup-steps ", config.warmup_steps,
                                                   " is more than --steps ", config.steps));
  }
  if (config.resume && config.overwrite) {
    return absl::InvalidArgumentError(
        "--resume goes on with what is in --output and --overwrite deletes it: give one of them");
  }
  for (const auto& [flag, fraction] :
       {std::pair("--param-fraction", config.param_fraction),
        std::pair("--optimizer-fraction", config.optimizer_fraction)}) {
    if (fraction > 0 && config.policy != "static") {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is of --policy static, not of ",
                                                     config.policy, ": leave one of them out"));
    }
  }
  if (config.eval_every > 0 && config.eval_data.empty()) {
    return absl::InvalidArgumentError("--eval-every needs --eval-data FILE.npy");
  }
  // The whole batch is one index into the data: position * sequence must not overflow.
  if (config.batch * config.accumulate > (int64_t{1} << 20)) {
    return absl::InvalidArgumentError(absl::StrCat("--batch ", config.batch, " times --accumulate ",
                                                   config.accumulate, " is more than ",
                                                   int64_t{1} << 20, " sequences a step"));
  }
  return absl::OkStatus();
}

std::string ToToml(const RunConfig& config) {
  std::string text = "# The resolved configuration of a run of gemini-train.\n";
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.resume == ResumeRule::kNotStored) continue;
    absl::StrAppend(&text, key.name, " = ", TomlValue(key, config), "\n");
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> CompareForResume(const RunConfig& before,
                                                          const RunConfig& now) {
  std::vector<std::string> allowed;
  std::vector<std::string> refused;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.resume == ResumeRule::kNotStored) continue;
    const std::string old_text = ValueText(key, before);
    const std::string new_text = ValueText(key, now);
    if (old_text == new_text) continue;
    std::string change = absl::StrCat(key.name, ": ", old_text, " is now ", new_text);
    bool fine = key.resume == ResumeRule::kFree;
    if (key.resume == ResumeRule::kGrow) {
      const auto member = std::get<int64_t RunConfig::*>(key.member);
      fine = now.*member > before.*member;
      if (!fine) change += " (may only grow)";
    }
    (fine ? allowed : refused).push_back(std::move(change));
  }
  if (!refused.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--resume cannot go on with other values than before: ", absl::StrJoin(refused, "; "),
        ". Leave them out, or start a new --output"));
  }
  return allowed;
}

}  // namespace gemini::trainer
