// SPDX-License-Identifier: Apache-2.0
// gemini-train: fine-tunes a Hugging Face checkpoint under a memory budget, in one command. Exit
// status: 0 done; 1 an error; 2 a wrong flag or configuration; 75 one of several ranks failed
// alone; 128 + signal when Ctrl-C (130), SIGTERM (143) or SIGUSR1 (138) ended the run behind a
// finished and saved step.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/Version.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/torch/model/element_types.h"
#include "gemini/byte_size.h"
#include "gemini/system/end_process.h"
#include "gemini/system/host_memory.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "torch/utils.h"
#include "trainer/config/command_line.h"
#include "trainer/config/rank_threads.h"
#include "trainer/data/task_wish_of_run.h"
#include "trainer/families/parameter_count.h"
#include "trainer/forecast/memory_plan.h"
#include "trainer/forecast/round_of_run.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/part_of_run.h"
#include "trainer/parallel/pipeline_stage.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/parallel/rank_needs.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/parallel/rank_watchdog.h"
#include "trainer/run/end_deadline.h"
#include "trainer/run/rank_job.h"
#include "trainer/run/run_checkpoint.h"
#include "trainer/run/run_inputs.h"
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
  if (fresh && !source.made_heads().empty()) {
    LogWarning(absl::StrCat(source.directory(), " has no ", ShortList(source.made_heads()),
                            " for the task ", NameOf(source.config().spec.task.kind),
                            ": it starts with random values made from --seed"));
  }
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
  GEMINI_ASSIGN_OR_RETURN(MetricsFile metrics, MetricsFile::Open(MetricsPath(config), mode, last));
  if (!metrics.rewritten().ok()) {
    warn(absl::StrCat("the metrics keep what the former run wrote of later steps: ",
                      metrics.rewritten().message()));
  }
  return metrics;
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

// Ends this process, and so the job: the launcher ends the other ranks. `why` may be empty.
[[noreturn]] void EndJob(int64_t rank, const std::string& why) {
  if (!why.empty()) {
    std::fprintf(stderr, "gemini-train: rank %d: %s\n", static_cast<int>(rank), why.c_str());
  }
  // Nothing is put in order: other ranks may read and write what this one has.
  std::_Exit(kExitRankFailed);
}

absl::StatusOr<std::unique_ptr<RankWatchdog>> StartWatchdog(const RunConfig& config,
                                                            const RankJob& job) {
  return RankWatchdog::Start(
      *job.communicator, job.agreement(),
      {.limit = absl::Seconds(config.collective_timeout),
       .one_machine = job.where.num_local_ranks == job.where.num_ranks,
       .end = [rank = job.where.rank](const std::string& why) { EndJob(rank, why); }});
}

// A run, stage by stage. Each stage is gone through by all ranks, which agree on how it went before
// the next one begins: what one of them cannot do ends all, with one message.
class TrainingRun {
 public:
  TrainingRun(CommandLine& line, const RankJob& job, const RankLayout& layout,
              const Interrupt& interrupt, Progress& progress,
              std::unique_ptr<RankWatchdog>& watchdog)
      : line_(line),
        config_(line.config),
        job_(job),
        layout_(layout),
        watchdog_(watchdog),
        ranks_(job.agreement()),
        interrupt_(interrupt),
        progress_(progress) {}

  // Returns the exit status.
  absl::StatusOr<int> Run();
  // Returns that of an error which all ranks have.
  int error_status() const { return error_status_; }

 private:
  absl::Status OpenOutput();
  absl::Status OpenInputs();
  // What all ranks must read alike, for a message.
  absl::StatusOr<std::string> DescribeFiles() const;
  absl::Status MakeModel();
  // Makes this rank's part of the model, where there are several.
  absl::Status MakePartOfModel();
  // Checks names, sizes and the room on the disk, of the whole model.
  absl::Status CheckModel();
  absl::Status OpenMemory();
  absl::Status Load();
  absl::StatusOr<TrainingSummary> TrainToTheEnd();
  // What is said here the ranks know alike.
  void Warn(const std::string& text) const {
    if (!ranks_.is_first()) return;
    progress_.Clear();
    LogWarning(text);
  }
  void Log(const std::string& text) const {
    progress_.Clear();
    LogInfo(text);
  }
  const ModelSpec& spec() const { return source_->config().spec; }

  const CommandLine& line_;
  RunConfig& config_;
  const RankJob& job_;
  const RankLayout layout_;
  std::unique_ptr<RankWatchdog>& watchdog_;  // Null as long as there is none.
  const RankAgreement ranks_;
  const Interrupt& interrupt_;
  Progress& progress_;
  std::optional<RunDirectory> directory_;  // Of the first rank.
  std::optional<Resumed> resumed_;
  std::optional<HfCheckpoint> source_;
  std::optional<TrainingData> data_, eval_data_;
  RunConfig sized_;  // With this machine's numbers in place of "auto".
  HostMemory host_;  // This rank's part of what the machine has.
  TrainingDevice device_;
  torch::Device torch_device_ = torch::kCPU;
  std::unique_ptr<StagedModel> model_;
  GatheredModel* shards_ = nullptr;         // The model, where there are several ranks.
  std::vector<ParameterShape> parameters_;  // Of the whole model, as files have them.
  TrainingMemory memory_;
  std::unique_ptr<PipelineStage> stage_;  // Runs the model where there are pipelines, else null.
  bool has_begun_ = false;                // To write to the output directory.
  int error_status_ = kExitError;
};

absl::StatusOr<int> TrainingRun::Run() {
  // Everything that can be refused is looked at before anything is made.
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(ranks_.is_first() ? OpenOutput() : absl::OkStatus()));
  GEMINI_ASSIGN_OR_RETURN(resumed_, ShareResumed(ranks_, std::move(resumed_)));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(OpenInputs()));
  const absl::StatusOr<std::string> files = DescribeFiles();
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(files.status()));
  GEMINI_RETURN_IF_ERROR(CheckSameRun(ranks_, config_, *files));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(MakeModel()));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(OpenMemory()));
  GEMINI_RETURN_IF_ERROR(ranks_.Agree(Load()));
  // From here on ranks wait for each other in all that they do.
  if (!ranks_.is_alone()) {
    GEMINI_ASSIGN_OR_RETURN(watchdog_, StartWatchdog(config_, job_));
  }
  absl::StatusOr<TrainingSummary> summary = TrainToTheEnd();
  if (summary.ok() && !ranks_.is_alone()) {
    GEMINI_ASSIGN_OR_RETURN(
        summary->neediest,
        GatherNeeds(ranks_, {.device_peak_bytes = summary->memory.device_peak_bytes,
                             .host_bytes = summary->memory.host_bytes}));
  }
  progress_.Clear();
  if (!summary.ok()) {
    if (!ranks_.is_first()) return summary.status();
    const absl::StatusOr<std::vector<SavedCheckpoint>> saved = directory_->Checkpoints();
    // Of an --overwrite run that did no step they are the former run's.
    if ((has_begun_ || config_.resume) && saved.ok() && !saved->empty()) {
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
    GEMINI_RETURN_IF_ERROR(
        CheckStepIsTheSame(config_, resumed_->state, layout_.num_data(), layout_.num_ranks()));
  }
  GEMINI_ASSIGN_OR_RETURN(const TaskWish wish, TaskWishOfRun(config_.task, config_.data));
  GEMINI_ASSIGN_OR_RETURN(
      source_, HfCheckpoint::Open(config_.model, static_cast<uint64_t>(config_.seed), wish));
  if (ranks_.is_first()) LogDifferences(*source_, /*fresh=*/!resumed_.has_value());
  GEMINI_ASSIGN_OR_RETURN(data_, OpenData("--data", config_.data, spec(), config_));
  GEMINI_RETURN_IF_ERROR(CheckTokenizer("--data", config_.data, *data_, *source_));
  if (resumed_.has_value()) {
    GEMINI_RETURN_IF_ERROR(CheckDataIsTheSame(config_, *resumed_, *data_));
  }
  if (!config_.eval_data.empty()) {
    GEMINI_ASSIGN_OR_RETURN(eval_data_,
                            OpenData("--eval-data", config_.eval_data, spec(), config_));
    GEMINI_RETURN_IF_ERROR(CheckTokenizer("--eval-data", config_.eval_data, *eval_data_, *source_));
  }
  sized_ = config_;
  if (job_.gpu.has_value()) sized_.device = absl::StrCat("cuda:", job_.gpu->number);
  if (!ranks_.is_alone()) DivideThreads(job_.where.num_local_ranks, sized_);
  if (sized_.threads > 0) at::set_num_threads(static_cast<int>(sized_.threads));
  GEMINI_ASSIGN_OR_RETURN(device_, OpenTrainingDevice(sized_, job_));
  torch_device_ = device_.torch();
  // All ranks have come here before any of them takes memory.
  // A daemon allocates what it grants, whatever limits this process.
  GEMINI_ASSIGN_OR_RETURN(host_, config_.daemon.empty() ? ReadHostMemory() : ReadMachineMemory());
  host_.total_bytes /= job_.where.num_local_ranks;
  host_.available_bytes /= job_.where.num_local_ranks;
  return absl::OkStatus();
}

absl::StatusOr<std::string> TrainingRun::DescribeFiles() const {
  if (ranks_.is_alone()) return "";
  GEMINI_ASSIGN_OR_RETURN(
      std::string text,
      DescribeWeights(resumed_.has_value() ? resumed_->path : source_->directory()));
  GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint data, data_->Fingerprint());
  absl::StrAppend(&text, "the data are ", Describe(data));
  if (eval_data_.has_value()) {
    GEMINI_ASSIGN_OR_RETURN(const TokenFingerprint eval_data, eval_data_->Fingerprint());
    absl::StrAppend(&text, ", those to evaluate on ", Describe(eval_data));
  }
  if (layout_.grid().num_ranks() > 1) {
    // Each computes what several have alike, and must get the same bits.
    absl::StrAppend(&text, "\nan operator has ", at::get_num_threads(),
                    " threads, and the instructions of ", at::get_cpu_capability());
  }
  return text;
}

absl::Status TrainingRun::MakeModel() {
  if (ranks_.is_alone()) {
    const torch::ScalarType type = client::hooks::ScalarTypeOf(config_.element());
    sized_.device_memory = DeviceMemory(sized_, NumParameters(spec()), /*num_frozen=*/0, host_);
    GEMINI_ASSIGN_OR_RETURN(
        model_, MakeStagedModel(spec(),
                                torch::TensorOptions().dtype(type).device(
                                    config_.reference ? torch::kCPU : torch::kMeta),
                                {.blocks = VocabularyBlocks(spec(), sized_, sized_.device_memory),
                                 .on_cpu = !config_.gpu().has_value()}));
    parameters_ = ShapesInFiles(ParameterShapesOf(*model_));
    model_->set_recompute(config_.recompute);
  } else {
    GEMINI_RETURN_IF_ERROR(MakePartOfModel());
  }
  return CheckModel();
}

absl::Status TrainingRun::MakePartOfModel() {
  const absl::StatusOr<ModelStages> stages = StagesOfRun(spec(), config_, layout_);
  if (!stages.ok()) {
    error_status_ = kExitUsage;
    return AtItsLine(stages.status(), line_);
  }
  GEMINI_ASSIGN_OR_RETURN(PartOfRun part, MakePartOfRun(spec(), sized_, layout_, *stages,
                                                        *job_.communicator, torch_device_));
  for (size_t u = 0; u < part.model->units().size(); ++u) {
    const std::vector<UnitTensor>& tensors = part.model->units()[u]->tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      parameters_.push_back({tensors[i].name, part.model->boxes(u)[i].sizes()});
    }
  }
  shards_ = part.model.get();
  model_ = std::move(part.model);
  stage_ = std::move(part.stage);
  int64_t num_trained = 0, num_frozen = 0;  // Whole parameters beside the pieces are frozen.
  for (const torch::Tensor& piece : model_->parameters()) {
    (piece.requires_grad() ? num_trained : num_frozen) += piece.numel();
  }
  sized_.device_memory = DeviceMemory(sized_, num_trained, num_frozen, host_);
  if (stage_ != nullptr && config_.zero_stage() > 1) {
    Warn(absl::StrCat("--zero ", config_.zero_stage(), " in a pipeline adds gradients ",
                      config_.accumulate, " times a step",
                      config_.zero_stage() == 3 ? absl::StrCat(", and gathers parameters up to ",
                                                               2 * config_.accumulate, " times")
                                                : "",
                      ": --zero 1 adds them once"));
  }
  return absl::OkStatus();
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
      "); ", data_->num_sequences(),
      spec().image.has_value() ? " images"
                               : absl::StrCat(" sequences of ", config_.sequence, " tokens"),
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
    GEMINI_RETURN_IF_ERROR(OpenShards(sized_, std::move(device_), *shards_, *job_.communicator,
                                      layout_, host_.available_bytes, memory_));
  } else {
    GEMINI_RETURN_IF_ERROR(OpenManaged(sized_, std::move(device_), spec(), *model_,
                                       ParameterShapesOf(*model_), host_.available_bytes, memory_));
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
  const TrainingParts parts = {.config = config_,
                               .device = torch_device_,
                               .model = *model_,
                               .stage = stage_.get(),
                               .store = *memory_.store,
                               .activations = *memory_.activations,
                               .fetch_expert = memory_.fetch_expert,
                               .parameters = parameters_,
                               .data = *data_,
                               .eval_data = eval_data_.has_value() ? &*eval_data_ : nullptr,
                               .source = *source_,
                               .directory = directory_.has_value() ? &*directory_ : nullptr,
                               .begin =
                                   [&] {
                                     absl::StatusOr<MetricsFile> begun =
                                         BeginOutput(config_, MetricsMode(config_), resumed_,
                                                     *directory_, warn);
                                     has_begun_ = begun.ok();
                                     return begun;
                                   },
                               .progress = progress_,
                               .interrupt = interrupt_,
                               .ranks = ranks_,
                               // On a GPU, where alone there is more for operators to be had.
                               .rehearses = job_.transport == Transport::kNccl,
                               .part = {.index = layout_.data(ranks_.rank()),
                                        .count = layout_.num_data(),
                                        .batch_parts = layout_.parts_of_batch(),
                                        .speaks = layout_.SpeaksForData(ranks_.rank())},
                               .log = [this](const std::string& text) { Log(text); },
                               .warn = warn};
  return Train(parts, resumed_.has_value() ? &resumed_->state : nullptr,
               resumed_.has_value() ? resumed_->path : "");
}

// Says why this rank fails, unless that is empty and another one says it. Returns the exit status.
int Fail(const std::string& why, int exit_status) {
  if (why.empty()) return exit_status;
  std::fprintf(stderr, "gemini-train: %s\n", why.c_str());
  if (exit_status == kExitUsage) std::fputs("gemini-train --help lists all keys\n", stderr);
  return exit_status;
}

// Ends the job if this rank waits for others at its end for longer than that, as long as what is
// returned is there.
std::unique_ptr<EndDeadline> LimitEnd(int64_t rank, absl::Duration limit) {
  // The launcher ends the others when the first rank ends itself: they say it where it does not.
  constexpr absl::Duration kFirstSpeaks = absl::Seconds(6);
  return std::make_unique<EndDeadline>(rank == 0 ? limit : limit + kFirstSpeaks, [rank, limit] {
    EndJob(rank, absl::StrCat("the run is over, and for ", absl::FormatDuration(limit),
                              " another rank has not come to its end: --collective-timeout is the "
                              "limit"));
  });
}

// Ends a run that is over: in order if all ranks are at its end, else with the job.
// `error_status`: of an error that all have. `limit`: of a wait for others.
int EndRun(const absl::StatusOr<int>& result, int error_status, const RankJob& job,
           absl::Duration limit, std::unique_ptr<RankWatchdog> watchdog) {
  const bool is_alone = job.communicator == nullptr;
  if (!is_alone && !result.ok() && !IsAgreed(result.status())) {
    const bool tells = watchdog == nullptr || watchdog->EndJob();
    EndJob(job.where.rank, tells ? std::string(result.status().message()) : "");
  }
  const bool is_first = job.where.rank == 0;
  const int status =
      result.ok() ? *result
                  : Fail(is_first ? std::string(result.status().message()) : "", error_status);
  if (watchdog != nullptr) {
    // All are here before one stops to tell how it is, and the first one's store stays until all
    // have stopped.
    job.agreement().Agree(absl::OkStatus()).IgnoreError();
    const std::unique_ptr<EndDeadline> deadline = LimitEnd(job.where.rank, limit);
    watchdog->Stop();
    job.agreement().Agree(absl::OkStatus()).IgnoreError();
  }
  return status;
}

int Print(const CommandLine& line) {
  const bool is_printed = line.help ? std::fputs(HelpText().c_str(), stdout) >= 0
                                    : std::puts("gemini-train " GEMINI_VERSION) >= 0;
  return is_printed ? 0 : kExitError;
}

// Returns the exit status of ranks that cannot begin: of a wrong configuration, unless something is
// missing that may come.
int StatusOfJoining(const absl::Status& why) {
  const bool is_shortage = absl::IsDeadlineExceeded(why) || absl::IsUnavailable(why) ||
                           absl::IsInternal(why) || absl::IsResourceExhausted(why);
  return is_shortage ? kExitError : kExitUsage;
}

int RunRank(LineOfRank& of_rank, const RankJob& job) {
  CommandLine* const line = &of_rank.line;
  const bool is_first = job.where.rank == 0;
  SetLogLevel(line->config.log_level);
  if (!is_first) LogWarningsOfRank(job.where.rank);
  if (is_first) {
    for (const std::string& change : line->changes) LogWarning("--resume: " + change);
    if (!of_rank.said.empty()) LogInfo(of_rank.said);
  }
  // Several ranks tell when they agree to stop: a launcher signals those that it is about to kill.
  const Interrupt interrupt(job.communicator == nullptr ? Interrupt::Tells::kYes
                                                        : Interrupt::Tells::kNo);
  Progress progress(is_first ? STDERR_FILENO : -1);
  std::unique_ptr<RankWatchdog> watchdog;
  TrainingRun run(*line, job, of_rank.layout, interrupt, progress, watchdog);
  absl::StatusOr<int> result = 0;
  try {
    result = run.Run();
  } catch (const std::exception& error) {  // Torch throws; what we expect is caught where it is.
    result = absl::InternalError(error.what());
  }
  progress.Clear();
  return EndRun(result, run.error_status(), job, of_rank.wish.limit, std::move(watchdog));
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<RankEnvironment> where = ReadRankEnvironment();
  if (!where.ok()) return Fail(std::string(where.status().message()), kExitUsage);
  absl::StatusOr<LineOfRank> line = ParseLineOfRank(arguments, *where);
  if (line.ok() && (line->line.help || line->line.version)) {
    return where->rank == 0 ? Print(line->line) : 0;
  }
  std::unique_ptr<EndDeadline> deadline;  // It goes behind the job.
  const absl::StatusOr<RankJob> job = JoinRanks(
      *where, line.ok() ? absl::StatusOr<JoinWish>(line->wish) : line.status(),
      [](const absl::Status& why) { Fail(std::string(why.message()), StatusOfJoining(why)); });
  if (!job.ok()) {
    const int status = StatusOfJoining(job.status());
    if (status == kExitError && !IsAgreed(job.status())) EndJob(where->rank, "");
    return status;
  }
  const int status = RunRank(*line, *job);
  // MPI ends when all ranks have come to its end. What they had of memory they have given back.
  if (job->communicator != nullptr) deadline = LimitEnd(where->rank, line->wish.limit);
  return status;
}

}  // namespace
}  // namespace gemini::trainer

int main(int argc, char** argv) {
  gemini::EndProcess(
      gemini::trainer::Main(std::vector<std::string>(argv + 1, argv + std::max(argc, 1))));
}
