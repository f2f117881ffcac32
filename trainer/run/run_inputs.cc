// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_inputs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/crc32c.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/status_macros.h"
#include "trainer/data/tokenizer_digest.h"
#include "trainer/run/metrics_file.h"
#include "trainer/run/run_checkpoint.h"

namespace gemini::trainer {
namespace {

namespace fs = std::filesystem;

// Where the path leads to, through all links.
fs::path Resolved(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(path, error);
  // Without a slash at its end, which would be a component of its own.
  return error ? fs::path(path) : (found / "x").parent_path();
}

// A flag and its path.
using Input = std::pair<const char*, std::string>;

std::vector<Input> DataOf(const RunConfig& config) {
  std::vector<Input> inputs;
  if (!config.data.empty()) inputs.emplace_back("--data", config.data);
  if (!config.eval_data.empty()) inputs.emplace_back("--eval-data", config.eval_data);
  return inputs;
}

// All that the run reads: data, the model's directory, and its files, which may be links.
std::vector<Input> InputsOf(const RunConfig& config) {
  std::vector<Input> inputs = DataOf(config);
  if (!config.model.empty()) {
    inputs.emplace_back("--model", config.model);
    std::error_code error;
    for (fs::directory_iterator file(config.model, error), end; file != end;
         file.increment(error)) {
      inputs.emplace_back("--model", file->path().string());
    }
  }
  return inputs;
}

// Data of another task, or with other labels than the model has.
absl::Status CheckTask(absl::string_view key, const std::string& path, const TaskSpec& data,
                       const TaskSpec& model) {
  if (data.kind != model.kind) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " ", path, " is of the task ", NameOf(data.kind),
                     ", and the model is to learn the task ", NameOf(model.kind), ": give --task ",
                     NameOf(data.kind), ", or other data"));
  }
  if (model.predicts_tokens()) return absl::OkStatus();
  if (model.kind == TaskKind::kDistogram) {
    if (data.num_labels == model.num_labels) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(key, " ", path, " has ", data.num_labels, " bins, and the model has ",
                     model.num_labels, ": set num_bins in its config.json, or take other data"));
  }
  const bool is_single = data.problem == ProblemType::kSingleLabel;
  if (data.problem != model.problem || (!is_single && data.num_labels != model.num_labels)) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " ", path, " has labels of ", NameOf(data.problem), ", ", data.num_labels,
                     ", and the model has ", NameOf(model.problem), ", ", model.num_labels,
                     ": prepare the data with this model's --problem"));
  }
  if (data.names.empty() || model.names.empty() || data.names == model.names) {
    return absl::OkStatus();
  }
  const auto [ours, theirs] = std::ranges::mismatch(data.names, model.names);
  return absl::InvalidArgumentError(absl::StrCat(
      key, " ", path, " has ", data.names.size(), " labels, and the model has ", model.names.size(),
      "; label ", ours - data.names.begin(), " is ",
      ours == data.names.end() ? "missing" : absl::StrCat("'", absl::CHexEscape(*ours), "'"),
      " there, and ",
      theirs == model.names.end() ? "missing" : absl::StrCat("'", absl::CHexEscape(*theirs), "'"),
      " in its config.json: prepare the data with this model's ",
      data.kind == TaskKind::kImageClassification ? "--model" : "--tokenizer"));
}

// Alignments where the model reads texts, or the other way round: both have a masked task.
absl::Status CheckKind(absl::string_view key, const std::string& path, const TrainingData& data,
                       const ModelSpec& spec) {
  const bool are_alignments = data.alignments() != nullptr;
  if (are_alignments == spec.pair_trunk.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, " ", path,
                                                 are_alignments
                                                     ? " has alignments, and the model reads texts"
                                                     : " has texts, and the model reads alignments",
                                                 ": take other data, or another model"));
}

// `what` names the sequence.
absl::Status CheckSequence(absl::string_view what, int64_t sequence, const ModelSpec& spec) {
  if (sequence < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a sequence of one token has nothing to predict"));
  }
  if (sequence > spec.max_sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is more than the ", spec.max_sequence, " positions of the model"));
  }
  return absl::OkStatus();
}

// Whether padding would make a text count as a longer one, for which the frequencies of positions
// are others.
bool CountsPadding(const ModelSpec& spec, int64_t sequence) {
  return std::ranges::any_of(spec.kinds, [sequence](const BlockKind& kind) {
    return kind.rotary.has_value() && kind.rotary->scaling == RotarySpec::Scaling::kLongRope &&
           sequence > kind.rotary->original_positions;
  });
}

}  // namespace

absl::StatusOr<TrainingData> OpenData(absl::string_view key, const std::string& path,
                                      const ModelSpec& spec, RunConfig& config) {
  const int64_t wanted = config.sequence > 0 ? config.sequence : spec.default_sequence();
  GEMINI_RETURN_IF_ERROR(CheckSequence(absl::StrCat("--sequence ", wanted), wanted, spec));
  GEMINI_ASSIGN_OR_RETURN(TrainingData data, TrainingData::Open(path, wanted));
  GEMINI_RETURN_IF_ERROR(CheckTask(key, path, data.task(), spec.task));
  GEMINI_RETURN_IF_ERROR(CheckKind(key, path, data, spec));
  const bool are_images = spec.image.has_value();
  const int64_t sequence = are_images ? spec.max_sequence : data.sequence_tokens();
  if (config.sequence > 0 && sequence != config.sequence) {
    if (are_images) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sequence ", config.sequence, ": the model makes ", sequence,
                       " tokens of each image, and no other number: leave --sequence out"));
    }
    // --data has set it before --eval-data is opened.
    const std::string other =
        key == "--data" ? absl::StrCat("give --sequence ", sequence, ", or ") : "";
    return absl::InvalidArgumentError(absl::StrCat(
        key, " ", path, " has rows of ", sequence, " tokens, and the run has sequences of ",
        config.sequence, ": ", other, "prepare the data with --sequence ", config.sequence));
  }
  GEMINI_RETURN_IF_ERROR(CheckSequence(
      absl::StrCat(key, " ", path, ": a row of ", sequence, " tokens"), sequence, spec));
  config.sequence = sequence;
  // A router's loss counts all tokens of a batch.
  const bool takes_padding =
      !spec.experts.has_value() || !spec.experts->router_loss_coefficient.has_value();
  GEMINI_RETURN_IF_ERROR(data.CheckRows(
      {.vocab_size = spec.vocab_size,
       .num_token_types = spec.num_token_types,
       .takes_padding = takes_padding,
       .image = spec.image,
       .num_sequences = spec.pair_trunk.has_value() ? spec.pair_trunk->num_sequences : 0,
       .task = spec.task},
      /*sees_padding=*/!spec.attention.causal || CountsPadding(spec, sequence)));
  // Steps and evaluations are foretold alike, by what needs more memory.
  config.has_documents |= data.has_documents();
  if (data.has_documents() && spec.task.kind == TaskKind::kCausal &&
      config.sequence_parallel == "ring") {
    return absl::UnimplementedError(absl::StrCat(
        key, " ", path,
        data.examples()->rows().is_packed()
            ? " has several documents in a row, which --sequence-parallel ring does not keep "
              "apart: take ulysses, or prepare the data with --pad"
            : " has padding, which --sequence-parallel ring would count to the lengths that the "
              "model's frequencies are for: take ulysses, or shorter rows"));
  }
  return data;
}

absl::Status CheckTokenizer(absl::string_view key, const std::string& path,
                            const TrainingData& data, const HfCheckpoint& source) {
  const auto compare = [&](absl::string_view what, const std::string& of_data,
                           const std::optional<std::string>& of_model) -> absl::Status {
    if (of_data.empty() || !of_model.has_value() || of_data == *of_model) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        key, " ", path, " was prepared with another ", what, " than ", source.directory(),
        " has: their digests are ", PrintableName(of_data), " and ", *of_model,
        ": prepare it again with --tokenizer ", source.directory()));
  };
  const std::string vocabulary = data.Metadata("vocabulary_crc32");
  if (!vocabulary.empty()) {
    for (const auto& [name, content] : source.companions()) {
      if (name != "tokenizer.json") continue;
      GEMINI_RETURN_IF_ERROR(compare("tokenizer", vocabulary, VocabularyDigest(content)));
    }
  }
  std::optional<std::string> of_model = ChatTemplateOf(source.companions());
  if (of_model.has_value()) of_model = TemplateDigest(*of_model);
  return compare("chat template", data.Metadata("template_crc32"), of_model);
}

absl::Status CheckRoom(const RunConfig& config, const RunDirectory& directory,
                       int64_t checkpoint_bytes, int64_t steps_done, int64_t num_saved) {
  if (config.no_save) return absl::OkStatus();
  int64_t saves = 1;
  if (config.save_every > 0) {
    saves = config.steps / config.save_every - steps_done / config.save_every +
            (config.steps % config.save_every == 0 ? 0 : 1);
  }
  // One more than stays: the old one goes when the new one is complete.
  const int64_t most = config.keep == 0 ? saves : std::min(saves, config.keep + 1 - num_saved);
  return directory.CheckRoom(std::max<int64_t>(most, 1) * checkpoint_bytes);
}

absl::Status CheckInputsLieElsewhere(const RunConfig& config) {
  const fs::path metrics = Resolved(MetricsPath(config));
  for (const auto& [key, path] : DataOf(config)) {
    if (Resolved(path) != metrics) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        key, " ", path, " is the file that --metrics writes, too: give another --metrics"));
  }
  std::error_code error;
  if (metrics.parent_path() != Resolved(config.output) &&
      fs::exists(metrics.parent_path() / "run.toml", error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics ", config.metrics,
                     " lies in the folder of another run: give another --metrics"));
  }
  if (!config.overwrite) return absl::OkStatus();
  const fs::path output = Resolved(config.output);
  for (const auto& [key, path] : InputsOf(config)) {
    const fs::path input = Resolved(path);
    const auto [of_output, of_input] =
        std::mismatch(output.begin(), output.end(), input.begin(), input.end());
    if (of_output != output.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(key, " ", path, " lies in --output ", config.output,
                     ", which --overwrite clears: give another --output, or copy it elsewhere"));
  }
  return absl::OkStatus();
}

std::string MetricsPath(const RunConfig& config) {
  return config.metrics.empty() ? config.output + "/metrics.jsonl" : config.metrics;
}

absl::StatusOr<std::optional<Resumed>> FindResumed(const RunConfig& config,
                                                   const RunDirectory& directory) {
  if (!config.resume) return std::nullopt;
  GEMINI_ASSIGN_OR_RETURN(const std::vector<SavedCheckpoint> saved, directory.Checkpoints());
  Resumed resumed;
  resumed.path = saved.back().path;
  resumed.num_saved = static_cast<int64_t>(saved.size());
  GEMINI_ASSIGN_OR_RETURN(resumed.state, ReadTrainerState(resumed.path));
  // An evaluation behind its save is in the metrics alone.
  resumed.state.evaluated_step =
      std::max(resumed.state.evaluated_step,
               MetricsFile::LastEvaluatedStep(MetricsPath(config), resumed.state.step));
  return resumed;
}

// Two lines: the path, and the state.
absl::StatusOr<std::optional<Resumed>> ShareResumed(const RankAgreement& ranks,
                                                    std::optional<Resumed> found) {
  GEMINI_ASSIGN_OR_RETURN(
      const std::string text,
      ranks.TextOfFirst(found.has_value() ? absl::StrCat(found->path, "\n", ToJson(found->state))
                                          : ""));
  if (ranks.is_first() || text.empty()) return found;
  Resumed resumed;
  resumed.path = text.substr(0, text.find('\n'));
  GEMINI_ASSIGN_OR_RETURN(resumed.state,
                          ParseTrainerState(text.substr(resumed.path.size() + 1), resumed.path));
  return resumed;
}

absl::Status CheckStepIsTheSame(const RunConfig& config, const TrainerState& state,
                                int64_t num_data, int64_t num_ranks) {
  const int64_t now = config.batch * config.accumulate * num_data;
  if (state.step * now == state.sequences_taken) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--resume: a step of this run takes ",
      state.sequences_taken / std::max<int64_t>(state.step, 1), " sequences, and --batch ",
      config.batch, " x --accumulate ", config.accumulate, " x ", num_ranks,
      num_ranks == 1 ? " rank" : " ranks",
      num_data == num_ranks ? ""
                            : absl::StrCat(" / ", num_ranks / num_data, " that share each row"),
      " are ", now, ": change them together, so that their product stays"));
}

std::string Describe(const TokenFingerprint& file) {
  return absl::StrFormat("%d tokens or pixels in %d bytes, its ends' checksum %08x",
                         file.num_tokens, file.file_bytes, file.ends_crc32c);
}

absl::StatusOr<std::string> DescribeWeights(const std::string& directory) {
  std::error_code error;
  std::set<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    std::error_code of_entry;  // A link to nothing is none of the model's files.
    if ((path.extension() == ".safetensors" || path.filename() == "config.json") &&
        std::filesystem::is_regular_file(path, of_entry)) {
      files.insert(path);
    }
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory, ": ", error.message()));
  std::string text;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) return absl::DataLossError(absl::StrCat(path.string(), ": ", error.message()));
    std::string ends(static_cast<size_t>(2 * std::min(size, kMiB)), '\0');
    const auto half = static_cast<std::streamsize>(ends.size() / 2);
    file.read(ends.data(), half);
    file.seekg(size - half);
    file.read(ends.data() + half, half);
    if (!file) return absl::DataLossError(absl::StrCat(path.string(), ": cannot be read"));
    absl::StrAppendFormat(&text, "%s has %d bytes, its ends' checksum %08x\n",
                          path.filename().string(), size,
                          Crc32c(std::as_bytes(std::span<const char>(ends))));
  }
  return text;
}

absl::Status CheckDataIsTheSame(const RunConfig& config, const Resumed& resumed,
                                const TrainingData& data) {
  if (!resumed.state.data.has_value()) return absl::OkStatus();
  const TokenFingerprint& before = *resumed.state.data;
  GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint now, data.Fingerprint());
  if (now == before) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--resume: ", config.data, " is not the data that this run began with: it has ",
      Describe(now), ", and had ", Describe(before), ": put that file back, or begin a run of ",
      "its own with --model ", resumed.path, " and another --output"));
}

}  // namespace gemini::trainer
