// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/command_line.h"

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {

std::string RunTomlPath(const RunConfig& config) {
  return absl::StrCat(config.output, "/run.toml");
}

namespace {

// Puts sizes that the run had before back to what they are by default, where it does not share the
// work that way any more and the command line does not name them.
void ForgetUnusedSizes(const Flags& flags, const SharingKeys& before, SharingKeys& config) {
  const SharingKeys defaults;
  const auto forget = [&](absl::string_view key, bool is_used, auto SharingKeys::*size) {
    const auto given = flags.values.find(key);
    const bool is_given = given != flags.values.end() && !given->second.empty();
    if (!is_used && !is_given) config.*size = defaults.*size;
  };
  forget("pipeline-chunks", config.pipeline > 1, &SharingKeys::pipeline_chunks);
  const bool same_stages =
      config.pipeline == before.pipeline && config.pipeline_chunks == before.pipeline_chunks;
  forget("pipeline-split", same_stages, &SharingKeys::pipeline_split);
  forget("tensor-size", config.tensor != "none", &SharingKeys::tensor_size);
  forget("tensor-depth", config.tensor == "2.5d", &SharingKeys::tensor_depth);
  forget("sequence-size", config.has_sequence_axis(), &SharingKeys::sequence_size);
  forget("sequence-layout", config.sequence_parallel == "ring", &SharingKeys::sequence_layout);
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> arguments) {
  CommandLine line;
  const KeyTable keys = RunKeys(line.config);
  GEMINI_ASSIGN_OR_RETURN(line.flags, keys.ParseFlags(arguments));
  const Flags& flags = line.flags;
  line.help = flags.help;
  line.version = flags.version;
  if (line.help || line.version) return line;

  GEMINI_RETURN_IF_ERROR(keys.Apply(flags));
  if (line.config.resume && !line.config.output.empty()) {
    const std::string path = RunTomlPath(line.config);
    absl::StatusOr<std::string> text = ReadConfigFile(path);
    if (!text.ok()) {
      return absl::Status(text.status().code(), absl::StrCat("--resume: no run to go on with: ",
                                                             text.status().message()));
    }
    RunConfig before;
    const KeyTable keys_before = RunKeys(before);
    GEMINI_RETURN_IF_ERROR(keys_before.ApplyToml(*text, path));
    line.config = before;
    GEMINI_RETURN_IF_ERROR(keys.Apply(flags));
    ForgetUnusedSizes(flags, before, line.config);
    GEMINI_ASSIGN_OR_RETURN(line.changes, keys.CompareForResume(keys_before));
  }
  GEMINI_RETURN_IF_ERROR(AtItsLine(CheckRunConfig(line.config), line));
  return line;
}

absl::Status AtItsLine(const absl::Status& refused, const CommandLine& line) {
  RunConfig config;
  return RunKeys(config).AtItsLine(refused, line.flags);
}

std::string HelpText() {
  RunConfig defaults;
  return absl::StrCat(
      "gemini-train: fine-tune a Hugging Face checkpoint that does not fit into DEVICE memory\n\n"
      "  gemini-train --model DIR --data tokens.npy --steps N --output DIR [--KEY VALUE ...]\n"
      "  gemini-train --config run.toml [--KEY VALUE ...]\n\n"
      "Every key is also a key of the TOML file; flags win. Sizes: 64MiB, 1.5GiB, 4096.\n\n",
      RunKeys(defaults).Help(),
      "\nExit status: 0 done; 1 an error, told on standard error; 2 a wrong flag or "
      "configuration;\n"
      "130 stopped by Ctrl-C (143 SIGTERM, 138 SIGUSR1) after a finished step and saved (--resume "
      "goes on);\n"
      "75 one of several ranks failed alone (--resume goes on from the last save).\n");
}

}  // namespace gemini::trainer
