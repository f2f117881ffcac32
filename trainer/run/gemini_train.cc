// SPDX-License-Identifier: Apache-2.0
// gemini-train: fine-tunes a Hugging Face checkpoint under a memory budget, in one command. Exit
// status: 0 done; 1 an error; 2 a wrong flag or configuration; 75 one of several ranks failed
// alone; 128 + signal when Ctrl-C (130), SIGTERM (143) or SIGUSR1 (138) ended the run behind a
// finished and saved step.
#include <sched.h>
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
#include "trainer/parallel/gathered_lm.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/run/rank_job.h"
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
constexpr int kExitRankFailed = 75;
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

RunDirectory::Mode DirectoryMode(const RunConfig& config) {
  return config.resume      ? RunDirectory::Mode::kResume
         : config.overwrite ? RunDirectory::Mode::kOverwrite
                            : RunDirectory::Mode::kNew;
}

MetricsFile::Mode MetricsMode(const RunConfig& config) {
  return config.resume      ? MetricsFile::Mode::kResume
         : config.overwrite ? MetricsFile::Mode::kOverwrite
                            : MetricsFile::Mode::kNew;
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

// The other ranks take what the first one has found. Two lines: the path, and the state.
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

// A step takes as many sequences as before, however they are divided among micro-batches and ranks.
absl::Status CheckStepIsTheSame(const RunConfig& config, const TrainerState& state,
                                int64_t num_ranks) {
  const int64_t now = config.batch * config.accumulate * num_ranks;
  if (state.step * now == state.sequences_taken) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--resume: a step of this run takes ",
                   state.sequences_taken / std::max<int64_t>(state.step, 1),
                   " sequences, and --batch ", config.batch, " x --accumulate ", config.accumulate,
                   " x ", num_ranks, num_ranks == 1 ? " rank" : " ranks", " are ", now,
                   ": change them together, so that their product stays"));
}

std::string Describe(const TokenFingerprint& file) {
  return absl::StrFormat("%d tokens in %d bytes, its ends' checksum %08x", file.num_tokens,
                         file.file_bytes, file.ends_crc32c);
}

// Other data would be taken in an order that is no part of either run.
absl::Status CheckDataIsTheSame(const RunConfig& config, const Resumed& resumed,
                                const TokenData& data) {
  if (!resumed.state.data.has_value()) return absl::OkStatus();
  const TokenFingerprint& before = *resumed.state.data;
  GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint now, data.Fingerprint());
  if (now == before) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--resume: ", config.data, " is not the data that this run began with: it has ",
      Describe(now), ", and had ", Describe(before), ": put that file back, or begin a run of ",
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

// Threads of operators and of updates, where they are not given, so that the ranks of a machine
// together have no more than it has processors.
void DivideThreads(int64_t num_local_ranks, RunConfig& config) {
  const auto processors = static_cast<int64_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  const int64_t usable =
      ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : processors;
  const int64_t threads = ThreadsOfRank(processors, usable, num_local_ranks);
  if (config.threads == 0) config.threads = threads;
  if (config.update_threads == 0) config.update_threads = std::max<int64_t>(threads / 2, 1);
}

// A run, stage by stage. Each stage is gone through by all ranks, which agree on how it went before
// the next one begins: what one of them cannot do ends all, with one message.
class TrainingRun {
 public:
  TrainingRun(RunConfig& config, const RankJob& job, const Interrupt& interrupt, Progress& progress)
      : config_(config),
        job_(job),
        ranks_(job.agreement()),
        interrupt_(interrupt),
        progress_(progress) {}

  // Returns the exit status.
  absl::StatusOr<int> Run();

 private:
  absl::Status OpenOutput();
  absl::Status OpenInputs();
  // What all ranks must have alike, for a message.
  absl::StatusOr<std::string> DescribeData() const;
  absl::Status MakeModel();
  // Checks names, sizes and the room on the disk, of the whole model.
  absl::Status CheckModel();
  absl::Status OpenMemory();
  absl::Status Load();
  absl::StatusOr<TrainingSummary> TrainToTheEnd();
  void Warn(const std::string& text) const {
    progress_.Clear();
    LogWarning(text);
  }
  void Log(const std::string& text) const {
    progress_.Clear();
    LogInfo(text);
  }
  const ModelSpec& spec() const { return source_->config().spec; }

  RunConfig& config_;
  const RankJob& job_;
  const RankAgreement ranks_;
  const Interrupt& interrupt_;
  Progress& progress_;
  std::optional<RunDirectory> directory_;  // Of the first rank.
  std::optional<Resumed> resumed_;
  std::optional<HfCheckpoint> source_;
  std::optional<TokenData> data_, eval_data_;
  RunConfig sized_;  // With this machine's numbers in place of "auto".
  int64_t available_bytes_ = 0;
  TrainingDevice device_;
  torch::Device torch_device_ = torch::kCPU;
  std::unique_ptr<CausalLm> model_;
  GatheredLm* shards_ = nullptr;            // The model, where there are several ranks.
  std::vector<ParameterShape> parameters_;  // Of the whole model, as files have them.
  TrainingMemory memory_;
};

absl::StatusOr<int> TrainingRun::Run() {
  // Everything that can be refused is looked at before anything is made.
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(ranks_.is_first() ? OpenOutput() : absl::OkStatus()));
  GEMINI_ASSIGN_OR_RETURN(resumed_, ShareResumed(ranks_, std::move(resumed_)));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(OpenInputs()));
  GEMINI_ASSIGN_OR_RETURN(const std::string data, DescribeData());
  GEMINI_RETURN_IF_ERROR(CheckSameRun(ranks_, config_, data));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(MakeModel()));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(OpenMemory()));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(Load()));
  const absl::StatusOr<TrainingSummary> summary = TrainToTheEnd();
  progress_.Clear();
  if (!summary.ok()) {
    if (!ranks_.is_first()) return summary.status();
    const absl::StatusOr<std::vector<SavedCheckpoint>> saved = directory_->Checkpoints();
    if (saved.ok() && !saved->empty()) {
      LogWarning(absl::StrCat("--resume goes on from ", saved->back().path));
    }
    return summary.status();
  }
  if (ranks_.is_first()) {
    std::fputs(SummaryText(config_, *summary).c_str(), stdout);
    std::fflush(stdout);
  }
  return summary->signal == 0 ? 0 : Interrupt::ExitStatus(summary->signal);
}

absl::Status TrainingRun::OpenOutput() {
  GEMINI_RETURN_IF_ERROR(CheckInputsLieElsewhere(config_));
  GEMINI_ASSIGN_OR_RETURN(RunDirectory opened,
                          RunDirectory::Open(config_.output, DirectoryMode(config_)));
  directory_.emplace(std::move(opened));
  if (!config_.metrics.empty()) {
    GEMINI_RETURN_IF_ERROR(MetricsFile::Check(config_.metrics, MetricsMode(config_)));
  }
  GEMINI_ASSIGN_OR_RETURN(resumed_, FindResumed(config_, *directory_));
  return absl::OkStatus();
}

absl::Status TrainingRun::OpenInputs() {
  if (resumed_.has_value()) {
    GEMINI_RETURN_IF_ERROR(CheckStepIsTheSame(config_, resumed_->state, ranks_.num_ranks()));
  }
  GEMINI_ASSIGN_OR_RETURN(source_,
                          HfCheckpoint::Open(config_.model, static_cast<uint64_t>(config_.seed)));
  if (ranks_.is_first()) LogDifferences(*source_, /*fresh=*/!resumed_.has_value());
  GEMINI_RETURN_IF_ERROR(ResolveSequence(spec(), config_));
  GEMINI_ASSIGN_OR_RETURN(data_, OpenData(config_.data, config_.sequence, spec().vocab_size));
  if (resumed_.has_value()) {
    GEMINI_RETURN_IF_ERROR(CheckDataIsTheSame(config_, *resumed_, *data_));
  }
  if (!config_.eval_data.empty()) {
    GEMINI_ASSIGN_OR_RETURN(eval_data_,
                            OpenData(config_.eval_data, config_.sequence, spec().vocab_size));
  }
  sized_ = config_;
  if (!ranks_.is_alone()) DivideThreads(job_.where.num_local_ranks, sized_);
  if (sized_.threads > 0) at::set_num_threads(static_cast<int>(sized_.threads));
  GEMINI_ASSIGN_OR_RETURN(device_, OpenTrainingDevice(sized_));
  torch_device_ = device_.torch();
  // All ranks have come here before any of them takes memory.
  GEMINI_ASSIGN_OR_RETURN(available_bytes_, AvailableMemory());
  available_bytes_ /= job_.where.num_local_ranks;
  return absl::OkStatus();
}

absl::StatusOr<std::string> TrainingRun::DescribeData() const {
  GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint data, data_->Fingerprint());
  std::string text = Describe(data);
  if (eval_data_.has_value()) {
    GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint eval_data, eval_data_->Fingerprint());
    absl::StrAppend(&text, ", those to evaluate on ", Describe(eval_data));
  }
  return text;
}

absl::Status TrainingRun::MakeModel() {
  const torch::ScalarType type = client::hooks::ScalarTypeOf(config_.element());
  if (ranks_.is_alone()) {
    GEMINI_ASSIGN_OR_RETURN(
        model_,
        MakeCausalLm(spec(),
                     torch::TensorOptions().dtype(type).device(config_.reference ? torch::kCPU
                                                                                 : torch::kMeta),
                     VocabularyBlocks(spec(), sized_, DeviceMemory(sized_, available_bytes_))));
    parameters_ = ShapesInFiles(ParameterShapesOf(*model_));
  } else {
    GEMINI_ASSIGN_OR_RETURN(
        std::unique_ptr<GatheredLm> shards,
        GatheredLm::Make(spec(), type, *job_.communicator, job_.communicator->world(),
                         ShardBlockElements(config_.format().moments)));
    for (const std::unique_ptr<GatheredUnit>& unit : shards->units()) {
      for (const UnitTensor& tensor : unit->tensors()) {
        parameters_.push_back({tensor.name, tensor.sizes});
      }
    }
    shards_ = shards.get();
    model_ = std::move(shards);
    if (model_->parameters().empty()) {
      return absl::InvalidArgumentError(
          "the model is too small to give this rank a part of it: start fewer ranks");
    }
  }
  model_->set_recompute(config_.recompute);
  return CheckModel();
}

absl::Status TrainingRun::CheckModel() {
  GEMINI_RETURN_IF_ERROR(source_->Check(parameters_));
  if (ranks_.is_first()) {
    GEMINI_ASSIGN_OR_RETURN(const int64_t checkpoint_bytes,
                            RunCheckpointBytes(*source_, parameters_, config_.optimizer_kind()));
    GEMINI_RETURN_IF_ERROR(CheckRoom(config_, *directory_, checkpoint_bytes,
                                     resumed_.has_value() ? resumed_->state.step : 0,
                                     resumed_.has_value() ? resumed_->num_saved : 0));
  }
  GEMINI_ASSIGN_OR_RETURN(const DecayExemptions no_decay, DecayExemptions::Parse(config_.no_decay));
  std::vector<std::string> names;
  int64_t num_elements = 0;
  for (const ParameterShape& parameter : parameters_) {
    names.push_back(parameter.name);
    num_elements += parameter.num_elements();
  }
  GEMINI_RETURN_IF_ERROR(no_decay.CheckAgainst(names));
  LogInfo(absl::StrCat(
      config_.model, ": ", source_->config().model_type, ", ", num_elements, " parameters (",
      FormatByteSize(num_elements * ElementBytes(config_.element())), " as ", config_.precision,
      "); ", data_->num_sequences(), " sequences of ", config_.sequence, " tokens",
      ranks_.is_alone() ? "" : absl::StrCat("; ", ranks_.num_ranks(), " ranks")));
  return absl::OkStatus();
}

absl::Status TrainingRun::OpenMemory() {
  if (config_.reference) {
    GEMINI_ASSIGN_OR_RETURN(const DecayExemptions no_decay,
                            DecayExemptions::Parse(config_.no_decay));
    GEMINI_ASSIGN_OR_RETURN(
        memory_.store, ReferenceParameterStore::Create(*model_, MakeOptimizer(config_), no_decay));
  } else if (shards_ != nullptr) {
    GEMINI_RETURN_IF_ERROR(
        OpenShards(sized_, *shards_, *job_.communicator, available_bytes_, memory_));
  } else {
    GEMINI_RETURN_IF_ERROR(OpenManaged(sized_, std::move(device_), spec(), *model_,
                                       ParameterShapesOf(*model_), available_bytes_, memory_));
  }
  memory_.store =
      std::make_unique<JoinedParameterStore>(std::move(memory_.store), ParameterShapesOf(*model_));
  if (memory_.activations == nullptr) {
    memory_.activations = std::make_unique<ActivationsInPlace>();
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::Load() {
  const auto loading = [&](int64_t done_bytes, int64_t total_bytes) {
    progress_.ShowPart({"loading", done_bytes, total_bytes, /*is_bytes=*/true}, MonotonicNow());
  };
  if (resumed_.has_value()) {
    GEMINI_ASSIGN_OR_RETURN(const HfCheckpoint weights, HfCheckpoint::Open(resumed_->path));
    GEMINI_RETURN_IF_ERROR(LoadParameters(weights, parameters_, *memory_.store, loading));
    GEMINI_RETURN_IF_ERROR(
        LoadOptimizer(resumed_->path, resumed_->state, parameters_, *memory_.store, loading));
    Log(absl::StrCat("goes on behind step ", resumed_->state.step, " from ", resumed_->path));
  } else {
    GEMINI_RETURN_IF_ERROR(LoadParameters(*source_, parameters_, *memory_.store, loading));
    Log(absl::StrCat("loaded ", source_->directory()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingSummary> TrainingRun::TrainToTheEnd() {
  const auto warn = [this](const std::string& text) { Warn(text); };
  const TrainingParts parts = {
      .config = config_,
      .device = torch_device_,
      .model = *model_,
      .store = *memory_.store,
      .activations = *memory_.activations,
      .fetch_expert = memory_.fetch_expert,
      .parameters = parameters_,
      .data = *data_,
      .eval_data = eval_data_.has_value() ? &*eval_data_ : nullptr,
      .source = *source_,
      .directory = directory_.has_value() ? &*directory_ : nullptr,
      .begin =
          [&] { return BeginOutput(config_, MetricsMode(config_), resumed_, *directory_, warn); },
      .progress = progress_,
      .interrupt = interrupt_,
      .ranks = ranks_,
      .log = [this](const std::string& text) { Log(text); },
      .warn = warn};
  return Train(parts, resumed_.has_value() ? &resumed_->state : nullptr,
               resumed_.has_value() ? resumed_->path : "");
}

// Tells an error, in one rank if all have it.
int Fail(const absl::Status& status, int exit_status, const RankEnvironment& where) {
  const bool is_lone = where.num_ranks > 1 && !IsAgreed(status);
  if (is_lone) {
    std::fprintf(stderr, "gemini-train: rank %d: %s\n", static_cast<int>(where.rank),
                 std::string(status.message()).c_str());
    return kExitRankFailed;
  }
  if (where.rank > 0) return exit_status;
  std::fprintf(stderr, "gemini-train: %s\n", std::string(status.message()).c_str());
  if (exit_status == kExitUsage) std::fputs("gemini-train --help lists all keys\n", stderr);
  return exit_status;
}

int RunRank(const std::vector<std::string>& arguments, const RankJob& job) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
  absl::Status parsed = line.status();
  if (line.ok() && !line->help && !line->version) {
    parsed = CheckRunOfRanks(line->config, job.where.num_ranks);
  }
  parsed = job.agreement().Agree(parsed);
  if (!parsed.ok()) return Fail(parsed, kExitUsage, job.where);
  const bool is_first = job.where.rank == 0;
  if (line->help) return !is_first || std::fputs(HelpText().c_str(), stdout) >= 0 ? 0 : kExitError;
  if (line->version) {
    return !is_first || std::puts("gemini-train " GEMINI_VERSION) >= 0 ? 0 : kExitError;
  }

  SetLogLevel(line->config.log_level);
  if (!is_first) LogWarningsOfRank(job.where.rank);
  if (is_first) {
    for (const std::string& change : line->changes) LogWarning("--resume: " + change);
  }
  const Interrupt interrupt(is_first ? Interrupt::Tells::kYes : Interrupt::Tells::kNo);
  Progress progress(is_first ? STDERR_FILENO : -1);
  try {
    const absl::StatusOr<int> result = TrainingRun(line->config, job, interrupt, progress).Run();
    progress.Clear();
    return result.ok() ? *result : Fail(result.status(), kExitError, job.where);
  } catch (const std::exception& error) {  // Torch throws; what we expect is caught where it is.
    progress.Clear();
    return Fail(absl::InternalError(error.what()), kExitError, job.where);
  }
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<RankEnvironment> where = ReadRankEnvironment();
  if (!where.ok()) return Fail(where.status(), kExitUsage, {});
  const absl::StatusOr<RankJob> job = JoinRanks(*where);
  if (job.ok()) return RunRank(arguments, *job);
  // The ranks of a machine find the same.
  return where->local_rank > 0 ? kExitUsage : Fail(MarkAsAgreed(job.status()), kExitUsage, {});
}

}  // namespace
}  // namespace gemini::trainer

int main(int argc, char** argv) {
  return gemini::trainer::Main(std::vector<std::string>(argv + 1, argv + std::max(argc, 1)));
}
