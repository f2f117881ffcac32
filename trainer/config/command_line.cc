// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/command_line.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

// No configuration is longer; a token file given by mistake is not read to its end.
constexpr std::streamsize kMaxConfigBytes = 1 << 20;

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
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

struct Flags {
  std::map<std::string, std::vector<std::string>> values;  // By key name; as written.
  std::string config_path;
  bool help = false;
  bool version = false;
};

// CLI11 throws; nothing leaves this function.
absl::StatusOr<Flags> ParseFlags(absl::Span<const std::string> arguments) {
  Flags flags;
  try {
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    app.allow_windows_style_options(false);
    app.add_flag("--help,-h", flags.help);
    app.add_flag("--version", flags.version);
    app.add_option("--config", flags.config_path);
    for (const ConfigKey& key : ConfigKeys()) {
      const std::string name = absl::StrCat("--", key.name);
      std::vector<std::string>& values = flags.values[std::string(key.name)];
      if (key.kind == KeyKind::kSwitch) {
        app.add_flag(name, values)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      } else if (key.kind == KeyKind::kNvme) {
        app.add_option(name, values)
            ->allow_extra_args(false)
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      } else {
        app.add_option(name, values)
            ->allow_extra_args(false)
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
    }
    // CLI11 takes them from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    for (const std::string& extra : app.remaining()) {
      if (extra.size() > 2 && extra.compare(0, 2, "--") == 0) {
        const std::string name = extra.substr(2, extra.find('=') - 2);
        return FindKey(name, extra).status();
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "'", absl::CHexEscape(extra), "' is no flag: all values are given as --KEY VALUE"));
    }
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return flags;
}

absl::Status ApplyFlags(const Flags& flags, RunConfig& config) {
  for (const ConfigKey& key : ConfigKeys()) {
    const auto found = flags.values.find(std::string(key.name));
    if (found == flags.values.end() || found->second.empty()) continue;
    if (key.kind == KeyKind::kNvme) config.nvme.clear();
    for (const std::string& value : found->second) {
      GEMINI_RETURN_IF_ERROR(SetKey(key, value, absl::StrCat("--", key.name), config));
    }
  }
  return absl::OkStatus();
}

std::string Wrapped(absl::string_view text, int indent, int width) {
  std::string out;
  int column = indent;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    const int length = static_cast<int>(word.size());
    if (column > indent && column + 1 + length > width) {
      absl::StrAppend(&out, "\n", std::string(static_cast<size_t>(indent), ' '));
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += length;
  }
  return out;
}

std::string DefaultText(const ConfigKey& key) {
  const RunConfig defaults;
  switch (key.kind) {
    case KeyKind::kText:
    case KeyKind::kPath:
    case KeyKind::kChoice:
      return defaults.*std::get<std::string RunConfig::*>(key.member);
    case KeyKind::kCount:
      return key.min > 0 && defaults.*std::get<int64_t RunConfig::*>(key.member) == 0
                 ? ""
                 : absl::StrCat(defaults.*std::get<int64_t RunConfig::*>(key.member));
    case KeyKind::kNumber:
    case KeyKind::kFraction:
      return absl::StrFormat("%g", defaults.*std::get<double RunConfig::*>(key.member));
    case KeyKind::kBytes:
      return "auto";
    case KeyKind::kBytesPerSecond:
      return "0";
    case KeyKind::kSwitch:
    case KeyKind::kNvme:
      return "";
  }
  return "";
}

}  // namespace

std::string RunTomlPath(const RunConfig& config) {
  return absl::StrCat(config.output, "/run.toml");
}

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> arguments) {
  CommandLine line;
  GEMINI_ASSIGN_OR_RETURN(const Flags flags, ParseFlags(arguments));
  line.help = flags.help;
  line.version = flags.version;
  if (line.help || line.version) return line;

  std::string file_text;
  if (!flags.config_path.empty()) {
    GEMINI_ASSIGN_OR_RETURN(file_text, ReadConfigFile(flags.config_path));
  }
  const auto apply = [&](RunConfig& config) -> absl::Status {
    GEMINI_RETURN_IF_ERROR(ApplyToml(file_text, flags.config_path, config));
    return ApplyFlags(flags, config);
  };
  GEMINI_RETURN_IF_ERROR(apply(line.config));
  if (line.config.resume && !line.config.output.empty()) {
    const std::string path = RunTomlPath(line.config);
    absl::StatusOr<std::string> text = ReadConfigFile(path);
    if (!text.ok()) {
      return absl::Status(text.status().code(), absl::StrCat("--resume: no run to go on with: ",
                                                             text.status().message()));
    }
    RunConfig before;
    GEMINI_RETURN_IF_ERROR(ApplyToml(*text, path, before));
    line.config = before;
    GEMINI_RETURN_IF_ERROR(apply(line.config));
    GEMINI_ASSIGN_OR_RETURN(line.changes, CompareForResume(before, line.config));
  }
  GEMINI_RETURN_IF_ERROR(CheckRunConfig(line.config));
  return line;
}

std::string HelpText() {
  // Wide enough for the longest key with its value.
  constexpr int kIndent = 28;
  constexpr int kWidth = 100;
  std::string text =
      "gemini-train: fine-tune a Hugging Face checkpoint that does not fit into DEVICE memory\n\n"
      "  gemini-train --model DIR --data tokens.npy --steps N --output DIR [--KEY VALUE ...]\n"
      "  gemini-train --config run.toml [--KEY VALUE ...]\n\n"
      "Every key is also a key of the TOML file; flags win. Sizes: 64MiB, 1.5GiB, 4096.\n\n";
  absl::StrAppendFormat(&text, "  %-*s%s\n", kIndent - 2, "--config FILE.toml",
                        "Read keys from a TOML file");
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string head =
        absl::StrCat("--", key.name, key.value_name.empty() ? "" : " ", key.value_name);
    std::string help(key.help);
    if (!key.choices.empty()) absl::StrAppend(&help, ": ", absl::StrJoin(key.choices, ", "));
    const std::string fallback = DefaultText(key);
    if (!fallback.empty()) absl::StrAppend(&help, " [", fallback, "]");
    absl::StrAppendFormat(&text, "  %-*s%s\n", kIndent - 2, head, Wrapped(help, kIndent, kWidth));
  }
  absl::StrAppendFormat(&text, "  %-*s%s\n", kIndent - 2, "--version", "Print the version");
  absl::StrAppendFormat(&text, "  %-*s%s\n", kIndent - 2, "--help", "Print this");
  text +=
      "\nExit status: 0 done; 1 an error, told on standard error; 2 a wrong flag or "
      "configuration;\n"
      "130 stopped by Ctrl-C behind a finished step and saved (--resume goes on).\n";
  return text;
}

}  // namespace gemini::trainer
