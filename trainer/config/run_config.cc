// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/run_config.h"

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
#include "gemini/device_name.h"
#include "gemini/nearest_name.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "toml++/toml.h"
#include "trainer/config/decay_exemptions.h"

namespace gemini::trainer {
namespace {

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

StateFormat RunConfig::format() const {
  const std::optional<MomentFormat> of_moments = MomentFormatOf(moments);
  GEMINI_CHECK(of_moments.has_value());  // The key has its choices.
  return {.element = element(), .optimizer = optimizer_kind(), .moments = *of_moments};
}

uint64_t RunConfig::rounding_seed() const {
  // Tensors add their index: those of two seeds must not meet.
  return moment_rounding == "stochastic" ? (static_cast<uint64_t>(seed) + 1) << 24 : 0;
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
        if (key.name == "chunk-size" && value % (4 * kKiB) != 0) {
          return Bad(where, absl::StrCat(value, " bytes is not a multiple of 4 KiB"));
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

std::optional<int> RunConfig::gpu() const { return ParseDeviceName(device).value_or(std::nullopt); }

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
  GEMINI_RETURN_IF_ERROR(DecayExemptions::Parse(config.no_decay).status());
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
  if (config.moment_rounding == "stochastic" && (config.moments != "8bit" || config.reference)) {
    return absl::InvalidArgumentError(
        config.reference
            ? "--reference rounds moments to nearest: leave --moment-rounding stochastic out"
            : "--moment-rounding stochastic is of --moments 8bit: leave it out, or add that");
  }
  if (config.states_on_nvme() && config.nvme.empty()) {
    return absl::InvalidArgumentError("--optimizer-tier nvme needs --nvme DIR:SIZE");
  }
  const absl::StatusOr<std::optional<int>> gpu = ParseDeviceName(config.device);
  if (!gpu.ok()) return absl::InvalidArgumentError(absl::StrCat("--", gpu.status().message()));
  if (gpu->has_value() && config.reference) {
    return absl::InvalidArgumentError(
        absl::StrCat("--reference is of the CPU: leave it out, or --device ", config.device));
  }
  if (gpu->has_value() && !config.daemon.empty() && config.device_memory == kAutoBytes) {
    return absl::InvalidArgumentError(
        "--device-memory is missing: say what of the GPU to ask the daemon for");
  }
  if (gpu->has_value() && config.device_bandwidth > 0) {
    return absl::InvalidArgumentError(
        "--device-bandwidth is of host memory that plays DEVICE: a GPU's link is as fast as it is");
  }
  if (config.no_save && config.save_every > 0) {
    return absl::InvalidArgumentError(
        "--no-save saves nothing, and --save-every does: give one of them");
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
