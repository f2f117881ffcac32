// SPDX-License-Identifier: Apache-2.0
#include "gemini/config/key_table.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gemini/nearest_name.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "toml++/toml.h"

namespace gemini {
namespace {

using Form = ConfigKey::Form;

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

// Names where the text was written that the key refuses.
absl::Status SetAt(const ConfigKey& key, absl::string_view text, absl::string_view where) {
  const absl::Status set = key.set(text);
  return set.ok() ? set : Bad(where, set.message());
}

// What a flag would say in place of a TOML value; no value where the key takes none of its type.
std::optional<std::string> FlagText(const toml::node& node, Form form) {
  const bool is_string = form == Form::kString || form == Form::kSize || form == Form::kList;
  const bool is_whole = form == Form::kWhole || form == Form::kSize || form == Form::kNumber;
  if (is_string && node.is_string()) return node.as_string()->get();
  if (is_whole && node.is_integer()) return absl::StrCat(node.as_integer()->get());
  if (form == Form::kNumber && node.is_floating_point()) {
    return NumberText(node.as_floating_point()->get());
  }
  if (form == Form::kSwitch && node.is_boolean())
    return node.as_boolean()->get() ? "true" : "false";
  return std::nullopt;
}

absl::Status SetFromToml(const ConfigKey& key, const toml::node& node, absl::string_view where) {
  std::vector<const toml::node*> nodes = {&node};
  if (key.form == Form::kList && node.is_array()) {
    nodes.clear();
    for (const toml::node& element : *node.as_array()) nodes.push_back(&element);
  }
  if (key.clear) key.clear();
  for (const toml::node* one : nodes) {
    const std::optional<std::string> text = FlagText(*one, key.form);
    if (!text.has_value()) {
      std::ostringstream type;
      type << one->type();
      return Bad(where, absl::StrCat("wants ", key.wants, ", not this ", type.str()));
    }
    GEMINI_RETURN_IF_ERROR(SetAt(key, *text, where));
  }
  return absl::OkStatus();
}

absl::StatusOr<toml::table> ParseToml(absl::string_view text, absl::string_view where) {
  try {
    return toml::parse(std::string_view(text.data(), text.size()));
  } catch (const toml::parse_error& error) {
    return Bad(absl::StrCat(where, ":", error.source().begin.line),
               absl::StrCat("not TOML: ", std::string(error.description())));
  }
}

// A value of a file. In a table its name has dots.
struct TomlValue {
  std::string name;
  std::string line;  // As "run.toml:3".
  const toml::node* node;
};

// Whether a table of this name has keys.
bool IsTable(absl::string_view name, const std::vector<ConfigKey>& table_keys) {
  return std::ranges::any_of(table_keys, [begin = absl::StrCat(name, ".")](const ConfigKey& key) {
    return absl::StartsWith(key.name, begin);
  });
}

// Adds the values of `table`, and of those in it that have keys.
void AddValues(const toml::table& table, absl::string_view prefix, absl::string_view where,
               const std::vector<ConfigKey>& table_keys, std::vector<TomlValue>& values) {
  for (const auto& [key, node] : table) {
    std::string name = absl::StrCat(prefix, std::string(key.str()));
    if (node.is_table() && IsTable(name, table_keys)) {
      AddValues(*node.as_table(), absl::StrCat(name, "."), where, table_keys, values);
    } else {
      values.push_back({std::move(name), absl::StrCat(where, ":", key.source().begin.line), &node});
    }
  }
}

std::string Quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::toml_formatter{toml::value<std::string>(text), toml::format_flags::none};
  return out.str();
}

std::string TomlText(const ConfigKey& key) {
  std::vector<std::string> texts = key.texts();
  const bool quoted =
      key.form == Form::kString || key.form == Form::kSize || key.form == Form::kList;
  if (quoted) {
    for (std::string& text : texts) text = Quoted(text);
  }
  const std::string joined = absl::StrJoin(texts, ", ");
  return key.form == Form::kList ? absl::StrCat("[", joined, "]") : joined;
}

// For messages.
std::string ShownText(const ConfigKey& key) {
  const std::string text = absl::StrJoin(key.texts(), ", ");
  return text.empty() ? "(none)" : text;
}

// No default is shown for a switch, and for a key that must be given, which refuses its own value.
std::string DefaultText(const ConfigKey& key) {
  const std::vector<std::string> texts = key.texts();
  const bool none =
      key.form == Form::kSwitch || texts.empty() || texts[0].empty() || !key.set(texts[0]).ok();
  return none ? "" : absl::StrCat(" [", texts[0], "]");
}

// Breaks the text into lines of at most 100 columns, the later ones indented.
std::string Wrapped(absl::string_view text, size_t indent) {
  constexpr size_t kWidth = 100;
  std::string out;
  size_t column = indent;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"))) {
    if (column > indent && column + 1 + word.size() > kWidth) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  constexpr std::streamsize kMaxConfigBytes = 1 << 20;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno == 0 ? EIO : errno, absl::StrCat("open ", path));
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), kMaxConfigBytes + 1);
  if (file.bad() || (file.gcount() == 0 && !file.eof())) {
    return ErrnoStatus(errno == 0 ? EIO : errno, absl::StrCat("read ", path));
  }
  if (file.gcount() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": more than ", kMaxConfigBytes, " bytes: no configuration"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::StatusOr<const ConfigKey*> KeyTable::Find(absl::string_view name, absl::string_view where,
                                                absl::string_view prefix) const {
  std::vector<absl::string_view> names;
  for (const std::vector<ConfigKey>* keys : {&keys_, &table_keys_}) {
    if (keys == &table_keys_ && !prefix.empty()) continue;
    for (const ConfigKey& key : *keys) {
      if (key.name == name) return &key;
      names.push_back(key.name);
    }
  }
  const std::string suggestion = DidYouMean(name, names, prefix);
  return Bad(where, absl::StrCat("unknown key '", absl::CHexEscape(name), "'",
                                 suggestion.empty() ? "; --help lists all keys" : suggestion));
}

absl::Status KeyTable::Set(absl::string_view name, absl::string_view text,
                           absl::string_view where) const {
  GEMINI_ASSIGN_OR_RETURN(const ConfigKey* key, Find(name, where, ""));
  return SetAt(*key, text, where);
}

absl::Status KeyTable::ApplyToml(absl::string_view text, absl::string_view where) const {
  GEMINI_ASSIGN_OR_RETURN(const toml::table table, ParseToml(text, where));
  std::vector<TomlValue> values;
  AddValues(table, "", where, table_keys_, values);
  std::map<absl::string_view, const TomlValue*> set_by;  // By the key whose variable it is.
  for (const TomlValue& value : values) {
    const std::string here = absl::StrCat(value.line, ": ", value.name);
    if (IsTable(value.name, table_keys_)) return Bad(here, "wants a table");
    GEMINI_ASSIGN_OR_RETURN(const ConfigKey* key, Find(value.name, value.line, ""));
    const auto [other, is_first] =
        set_by.try_emplace(key->same_as.empty() ? key->name : key->same_as, &value);
    if (!is_first) {
      return Bad(here, absl::StrCat("is the same as ", other->second->name, " at ",
                                    other->second->line, ": leave one of them out"));
    }
    GEMINI_RETURN_IF_ERROR(SetFromToml(*key, *value.node, here));
  }
  return absl::OkStatus();
}

std::string KeyTable::ToToml() const {
  std::string text;
  for (const ConfigKey& key : keys_) {
    if (key.resume == ResumeRule::kNotStored) continue;
    absl::StrAppend(&text, key.name, " = ", TomlText(key), "\n");
  }
  return text;
}

// CLI11 throws; nothing leaves this function.
absl::StatusOr<Flags> KeyTable::ParseFlags(absl::Span<const std::string> arguments) const {
  Flags flags;
  try {
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    app.allow_windows_style_options(false);
    app.add_flag("--help,-h", flags.help);
    app.add_flag("--version", flags.version);
    app.add_option("--config", flags.config_path);
    for (const ConfigKey& key : keys_) {
      const std::string name = absl::StrCat("--", key.name);
      std::vector<std::string>& values = flags.values[std::string(key.name)];
      CLI::Option* const option = key.form == Form::kSwitch
                                      ? app.add_flag(name, values)
                                      : app.add_option(name, values)->allow_extra_args(false);
      option->multi_option_policy(key.form == Form::kList ? CLI::MultiOptionPolicy::TakeAll
                                                          : CLI::MultiOptionPolicy::TakeLast);
    }
    // CLI11 takes them from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    for (const std::string& extra : app.remaining()) {
      if (extra.size() > 2 && extra.compare(0, 2, "--") == 0) {
        return Find(extra.substr(2, extra.find('=') - 2), extra, "--").status();
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "'", absl::CHexEscape(extra), "' is no flag: all values are given as --KEY VALUE"));
    }
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (!flags.config_path.empty() && !flags.help && !flags.version) {
    GEMINI_ASSIGN_OR_RETURN(flags.config_text, ReadConfigFile(flags.config_path));
  }
  return flags;
}

absl::Status KeyTable::Apply(const Flags& flags) const {
  GEMINI_RETURN_IF_ERROR(ApplyToml(flags.config_text, flags.config_path));
  for (const ConfigKey& key : keys_) {
    const auto found = flags.values.find(key.name);
    if (found == flags.values.end() || found->second.empty()) continue;
    if (key.clear) key.clear();
    for (const std::string& text : found->second) {
      GEMINI_RETURN_IF_ERROR(SetAt(key, text, absl::StrCat("--", key.name)));
    }
  }
  return absl::OkStatus();
}

absl::Status KeyTable::AtItsLine(const absl::Status& refused, const Flags& flags) const {
  const absl::StatusOr<toml::table> table = ParseToml(flags.config_text, flags.config_path);
  if (refused.ok() || !table.ok()) return refused;
  std::vector<TomlValue> values;
  AddValues(*table, "", flags.config_path, table_keys_, values);
  for (absl::string_view word : absl::StrSplit(refused.message(), absl::ByAnyChar(" :,"))) {
    if (!absl::ConsumePrefix(&word, "--")) continue;
    const auto flag = flags.values.find(word);
    if (flag != flags.values.end() && !flag->second.empty()) continue;
    for (const TomlValue& value : values) {
      const absl::StatusOr<const ConfigKey*> key = Find(value.name, "", "");
      if (!key.ok() || ((*key)->name != word && (*key)->same_as != word)) continue;
      return absl::Status(refused.code(), absl::StrCat(value.line, ": ", refused.message()));
    }
  }
  return refused;
}

std::string KeyTable::Help() const {
  constexpr int kIndent = 28;
  const auto line = [](absl::string_view head, absl::string_view help) {
    const bool fits = head.size() + 4 <= kIndent;
    return absl::StrFormat("  %-*s%s%s\n", kIndent - 2, head,
                           fits ? "" : absl::StrCat("\n", std::string(kIndent, ' ')),
                           Wrapped(help, kIndent));
  };
  std::string text = line("--config FILE.toml", "Read keys from a TOML file");
  for (const ConfigKey& key : keys_) {
    text += line(absl::StrCat("--", key.name, key.value_name.empty() ? "" : " ", key.value_name),
                 absl::StrCat(key.help, key.choices.empty() ? "" : ": ",
                              absl::StrJoin(key.choices, ", "), DefaultText(key)));
  }
  absl::StrAppend(&text, line("--version", "Print the version"), line("--help", "Print this"));
  return text;
}

absl::StatusOr<std::vector<std::string>> KeyTable::CompareForResume(const KeyTable& before) const {
  std::vector<std::string> allowed;
  std::vector<std::string> refused;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const ConfigKey& key = keys_[i];
    const std::string old_text = ShownText(before.keys_[i]);
    const std::string new_text = ShownText(key);
    if (key.resume == ResumeRule::kNotStored || old_text == new_text) continue;
    std::string change = absl::StrCat(key.name, ": ", old_text, " is now ", new_text);
    bool fine = key.resume == ResumeRule::kFree;
    if (key.resume == ResumeRule::kGrow) {
      int64_t old_count = 0, new_count = 0;
      fine = absl::SimpleAtoi(old_text, &old_count) && absl::SimpleAtoi(new_text, &new_count) &&
             new_count > old_count;
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

}  // namespace gemini
