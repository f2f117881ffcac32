// SPDX-License-Identifier: Apache-2.0
// gemini-train: fine-tunes a Hugging Face checkpoint under a memory budget, in one command. Exit
// status: 0 done; 1 an error; 2 a wrong flag or configuration; 128 + signal when Ctrl-C (130) or
// SIGTERM (143) ended the run behind a finished and saved step.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/torch/model/element_types.h"
#include "gemini/byte_size.h"
#include "gemini/system/available_memory.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "torch/utils.h"
#include "trainer/config/command_line.h"
#include "trainer/forecast/memory_plan.h"
#include "trainer/forecast/round_of_run.h"
#include "trainer/run/run_checkpoint.h"
#include "trainer/run/run_log.h"
#include "trainer/run/summary_text.h"
#include "trainer/run/training_loop.h"
#include "trainer/run/training_memory.h"
#include "trainer/store/parameter_store_joined.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;
// Positions that "--sequence 0" takes at most: more is rarely meant and costs memory squared.
constexpr int64_t kDefaultSequence = 1024;

// Returns at most ten of the names, as text, and how many more there are.
std::string ShortList(std::vector<std::string> names) {
  constexpr size_t kMaxListed = 10;
  const size_t more = names.size() - std::min(names.size(), kMaxListed);
  names.resize(names.size() - more);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// Says what of the files is not what the model trains. `fresh`: the run begins with them.
void LogDifferences(const HfCheckpoint& source, bool fresh) {
  std::vector<std::string> keys = source.config().unknown_keys;
  for (std::string& key : keys) key = absl::CHexEscape(key.substr(0, 100));
  if (!keys.empty()) {
    LogWarning(absl::StrCat(source.directory(),
                            "/config.json has keys that are not known here and ",
                            "change nothing: ", ShortList(keys),
                            ". If one of them changes what transformers computes, results differ"));
  }
  if (!source.left_out().empty()) {
    LogWarning(absl::StrCat(source.directory(), " has a head of another task, which is left out: ",
                            ShortList(source.left_out())));
  }
  if (fresh && source.makes_head()) {
    LogWarning(absl::StrCat(source.directory(), " has no ", source.config().spec.files.head,
                            ": it starts with random values made from --seed"));
  }
}

absl::StatusOr<TokenData> OpenData(const std::string& path, int64_t sequence, int64_t vocab_size) {
  GEMINI_ASSIGN_OR_RETURN(TokenData data, TokenData::Open(path, sequence));
  GEMINI_RETURN_IF_ERROR(data.CheckVocabulary(vocab_size));
  return data;
}

absl::Status ResolveSequence(const ModelSpec& spec, RunConfig& config) {
  if (config.sequence == 0) config.sequence = std::min(spec.max_sequence, kDefaultSequence);
  if (config.sequence < 2) {
    return absl::InvalidArgumentError(
        "--sequence 1: a sequence of one token has nothing to predict");
  }
  if (config.sequence > spec.max_sequence) {
    return absl::InvalidArgumentError(absl::StrCat("--sequence ", config.sequence,
                                                   " is more than the ", spec.max_sequence,
                                                   " positions of the model"));
  }
  return absl::OkStatus();
}

// Bytes that must be free: all checkpoints that will lie there at once, less those there already.
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

// --overwrite removes what a run made in --output: what this run reads must not lie there.
absl::Status CheckInputsLieElsewhere(const RunConfig& config) {
  if (!config.overwrite) return absl::OkStatus();
  const auto resolved = [](const std::string& path) {
    std::error_code error;
    const std::filesystem::path found = std::filesystem::weakly_canonical(path, error);
    // Without a slash at its end, which would be a component of its own.
    return error ? std::filesystem::path(path) : (found / "x").parent_path();
  };
  const std::filesystem::path output = resolved(config.output);
  for (const auto& [key, path] :
       {std::pair<const char*, const std::string&>("--model", config.model),
        {"--data", config.data},
        {"--eval-data", config.eval_data}}) {
    if (path.empty()) continue;
    const std::filesystem::path input = resolved(path);
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

// What a resumed run starts from.
struct Resumed {
  std::string path;
  TrainerState state;
  int64_t num_saved = 0;
};

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

// Other data would be taken in an order that is no part of either run.
absl::Status CheckDataIsTheSame(const RunConfig& config, const Resumed& resumed,
                                const TokenData& data) {
  if (!resumed.state.data.has_value()) return absl::OkStatus();
  const TokenFingerprint& before = *resumed.state.data;
  GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint now, data.Fingerprint());
  if (now == before) return absl::OkStatus();
  const auto describe = [](const TokenFingerprint& file) {
    return absl::StrFormat("%d tokens in %d bytes, its ends' checksum %08x", file.num_tokens,
                           file.file_bytes, file.ends_crc32c);
  };
  return absl::InvalidArgumentError(absl::StrCat(
      "--resume: ", config.data, " is not the data that this run began with: it has ",
      describe(now), ", and had ", describe(before), ": put that file back, or begin a run of ",
      "its own with --model ", resumed.path, " and another --output"));
}

// Makes --output ready and opens the metrics, as TrainingParts::begin.
absl::StatusOr<MetricsFile> BeginOutput(const RunConfig& config, MetricsFile::Mode mode,
                                        const std::optional<Resumed>& resumed,
                                        RunDirectory& directory,
                                        const std::function<void(const std::string&)>& warn) {
  GEMINI_ASSIGN_OR_RETURN(const PreparedDirectory prepared, directory.Prepare());
  if (!prepared.housekeeping.ok()) {
    warn(absl::StrCat("what a dead run left stays, and training goes on: ",
                      prepared.housekeeping.message()));
  }
  GEMINI_RETURN_IF_ERROR(directory.WriteConfig(ToToml(config)));
  MetricsFile::Last last;
  if (resumed.has_value()) last = {resumed->state.step, resumed->state.evaluated_step};
  return MetricsFile::Open(MetricsPath(config), mode, last);
}

absl::StatusOr<int> Run(CommandLine& line, const Interrupt& interrupt, Progress& progress) {
  RunConfig& config = line.config;
  const auto mode = config.resume      ? RunDirectory::Mode::kResume
                    : config.overwrite ? RunDirectory::Mode::kOverwrite
                                       : RunDirectory::Mode::kNew;
  // Everything that can be refused is looked at before anything is made.
  GEMINI_RETURN_IF_ERROR(CheckInputsLieElsewhere(config));
  GEMINI_ASSIGN_OR_RETURN(RunDirectory directory, RunDirectory::Open(config.output, mode));
  const auto metrics_mode = config.resume      ? MetricsFile::Mode::kResume
                            : config.overwrite ? MetricsFile::Mode::kOverwrite
                                               : MetricsFile::Mode::kNew;
  if (!config.metrics.empty()) {
    GEMINI_RETURN_IF_ERROR(MetricsFile::Check(config.metrics, metrics_mode));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::optional<Resumed> resumed, FindResumed(config, directory));
  GEMINI_ASSIGN_OR_RETURN(const HfCheckpoint source,
                          HfCheckpoint::Open(config.model, static_cast<uint64_t>(config.seed)));
  LogDifferences(source, /*fresh=*/!resumed.has_value());
  GEMINI_RETURN_IF_ERROR(ResolveSequence(source.config().spec, config));
  GEMINI_ASSIGN_OR_RETURN(const TokenData data,
                          OpenData(config.data, config.sequence, source.config().spec.vocab_size));
  if (resumed.has_value()) GEMINI_RETURN_IF_ERROR(CheckDataIsTheSame(config, *resumed, data));
  std::optional<TokenData> eval_data;
  if (!config.eval_data.empty()) {
    GEMINI_ASSIGN_OR_RETURN(
        eval_data, OpenData(config.eval_data, config.sequence, source.config().spec.vocab_size));
  }
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
  RunConfig sized = config;
  GEMINI_ASSIGN_OR_RETURN(TrainingDevice device, OpenTrainingDevice(sized));
  const torch::Device torch_device = device.torch();
  GEMINI_ASSIGN_OR_RETURN(const int64_t available, AvailableMemory());
  GEMINI_ASSIGN_OR_RETURN(
      const std::unique_ptr<CausalLm> model,
      MakeCausalLm(source.config().spec,
                   torch::TensorOptions()
                       .dtype(client::hooks::ScalarTypeOf(config.element()))
                       .device(config.reference ? torch::kCPU : torch::kMeta),
                   VocabularyBlocks(source.config().spec, sized, DeviceMemory(sized, available))));
  model->set_recompute(config.recompute);
  const std::vector<ParameterShape> model_parameters = ParameterShapesOf(*model);
  const std::vector<ParameterShape> parameters = ShapesInFiles(model_parameters);
  GEMINI_RETURN_IF_ERROR(source.Check(parameters));
  GEMINI_ASSIGN_OR_RETURN(const int64_t checkpoint_bytes,
                          RunCheckpointBytes(source, parameters, config.optimizer_kind()));
  GEMINI_RETURN_IF_ERROR(CheckRoom(config, directory, checkpoint_bytes,
                                   resumed.has_value() ? resumed->state.step : 0,
                                   resumed.has_value() ? resumed->num_saved : 0));
  GEMINI_ASSIGN_OR_RETURN(const DecayExemptions no_decay, DecayExemptions::Parse(config.no_decay));
  std::vector<std::string> names;
  int64_t num_elements = 0;
  for (const ParameterShape& parameter : parameters) {
    names.push_back(parameter.name);
    num_elements += parameter.num_elements();
  }
  GEMINI_RETURN_IF_ERROR(no_decay.CheckAgainst(names));
  LogInfo(absl::StrCat(
      config.model, ": ", source.config().model_type, ", ", num_elements, " parameters (",
      FormatByteSize(num_elements * ElementBytes(config.element())), " as ", config.precision,
      "); ", data.num_sequences(), " sequences of ", config.sequence, " tokens"));

  TrainingMemory memory;
  if (config.reference) {
    GEMINI_ASSIGN_OR_RETURN(
        memory.store, ReferenceParameterStore::Create(*model, MakeOptimizer(config), no_decay));
  } else {
    GEMINI_RETURN_IF_ERROR(OpenManaged(sized, std::move(device), source.config().spec, *model,
                                       model_parameters, available, memory));
  }
  memory.store = std::make_unique<JoinedParameterStore>(std::move(memory.store), model_parameters);
  if (memory.activations == nullptr) {
    memory.activations = std::make_unique<ActivationsInPlace>();
  }
  const auto loading = [&](int64_t done_bytes, int64_t total_bytes) {
    progress.ShowPart({"loading", done_bytes, total_bytes, /*is_bytes=*/true}, MonotonicNow());
  };
  if (resumed.has_value()) {
    GEMINI_ASSIGN_OR_RETURN(const HfCheckpoint weights, HfCheckpoint::Open(resumed->path));
    GEMINI_RETURN_IF_ERROR(LoadParameters(weights, parameters, *memory.store, loading));
    GEMINI_RETURN_IF_ERROR(
        LoadOptimizer(resumed->path, resumed->state, parameters, *memory.store, loading));
    progress.Clear();
    LogInfo(absl::StrCat("goes on behind step ", resumed->state.step, " from ", resumed->path));
  } else {
    GEMINI_RETURN_IF_ERROR(LoadParameters(source, parameters, *memory.store, loading));
    progress.Clear();
    LogInfo(absl::StrCat("loaded ", source.directory()));
  }

  const auto warn = [&](const std::string& text) {
    progress.Clear();
    LogWarning(text);
  };
  const TrainingParts parts = {
      .config = config,
      .device = torch_device,
      .model = *model,
      .store = *memory.store,
      .activations = *memory.activations,
      .fetch_expert = memory.fetch_expert,
      .parameters = parameters,
      .data = data,
      .eval_data = eval_data.has_value() ? &*eval_data : nullptr,
      .source = source,
      .directory = directory,
      .begin = [&] { return BeginOutput(config, metrics_mode, resumed, directory, warn); },
      .progress = progress,
      .interrupt = interrupt,
      .log =
          [&](const std::string& text) {
            progress.Clear();
            LogInfo(text);
          },
      .warn = warn};
  const absl::StatusOr<TrainingSummary> summary =
      Train(parts, resumed.has_value() ? &resumed->state : nullptr,
            resumed.has_value() ? resumed->path : "");
  progress.Clear();
  if (!summary.ok()) {
    const absl::StatusOr<std::vector<SavedCheckpoint>> saved = directory.Checkpoints();
    if (saved.ok() && !saved->empty()) {
      LogWarning(absl::StrCat("--resume goes on from ", saved->back().path));
    }
    return summary.status();
  }
  std::fputs(SummaryText(config, *summary).c_str(), stdout);
  std::fflush(stdout);
  return interrupt.signal() == 0 ? 0 : Interrupt::ExitStatus(interrupt.signal());
}

int Fail(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "gemini-train: %s\n", std::string(status.message()).c_str());
  if (exit_status == kExitUsage) std::fputs("gemini-train --help lists all keys\n", stderr);
  return exit_status;
}

int Main(const std::vector<std::string>& arguments) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
  if (!line.ok()) return Fail(line.status(), kExitUsage);
  if (line->help) return std::fputs(HelpText().c_str(), stdout) < 0 ? kExitError : 0;
  if (line->version) return std::puts("gemini-train " GEMINI_VERSION) < 0 ? kExitError : 0;

  SetLogLevel(line->config.log_level);
  for (const std::string& change : line->changes) LogWarning("--resume: " + change);

  const Interrupt interrupt;
  Progress progress(STDERR_FILENO);
  try {
    const absl::StatusOr<int> result = Run(*line, interrupt, progress);
    progress.Clear();
    return result.ok() ? *result : Fail(result.status(), kExitError);
  } catch (const std::exception& error) {  // Torch throws; what we expect is caught where it is.
    progress.Clear();
    return Fail(absl::InternalError(error.what()), kExitError);
  }
}

}  // namespace
}  // namespace gemini::trainer

int main(int argc, char** argv) {
  return gemini::trainer::Main(std::vector<std::string>(argv + 1, argv + std::max(argc, 1)));
}
