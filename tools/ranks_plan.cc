// SPDX-License-Identifier: Apache-2.0
#include "tools/ranks_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemini/byte_size.h"
#include "gemini/device_shortage.h"
#include "gemini/json_text.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"
#include "policies/pipeline/stage_split.h"
#include "policies/scaling/mesh_fit.h"
#include "policies/scaling/mesh_search.h"
#include "tools/gpu_table.h"
#include "tools/rank_rates.h"
#include "tools/ranks_view.h"
#include "tools/trace_helper.h"
#include "trainer/config/mesh_of_keys.h"
#include "trainer/config/rank_threads.h"
#include "trainer/families/hf_config.h"
#include "trainer/families/sizes_of_spec.h"
#include "trainer/forecast/ranks_exchange.h"

namespace gemini::tools {
namespace {

constexpr size_t kNumBest = 3;
// So many ranks are run without memory, which takes each up to a second.
constexpr int64_t kMostDryRanks = 16;
// A step of a search has so many tokens if nothing else is said, as steps of large models do.
constexpr int64_t kStepTokens = int64_t{4} << 20;

int Refuse(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "memstat plan: %s\n", std::string(status.message()).c_str());
  return exit_status;
}

absl::StatusOr<policies::ParameterBytes> BytesOf(const PlanFlags& flags, ElementType precision) {
  const std::optional<MomentFormat> moments = MomentFormatOf(flags.moments);
  const std::optional<OptimizerKind> optimizer = OptimizerKindOf(flags.optimizer);
  if (!moments.has_value() || !optimizer.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--optimizer ", flags.optimizer, ", --moments ",
                                                   flags.moments, ": there are none of these"));
  }
  const auto element = static_cast<double>(ElementBytes(precision));
  const auto kinds = static_cast<double>(TrainableKinds({precision, *optimizer, *moments}).size());
  return policies::ParameterBytes{
      .parameter = element, .gradient = element, .states = element * (kinds - 2)};
}

// Puts the rates that were measured where flags name a GPU's. What leaves DEVICE is copied in the
// machine's memory.
absl::Status ApplyRates(const RankRates& rates, PlanFlags& flags) {
  if (!flags.precision.empty() && flags.precision != ElementTypeName(ElementType::kFp32)) {
    return absl::InvalidArgumentError(absl::StrCat("--precision ", flags.precision,
                                                   ": --measured has rates of processors in fp32"));
  }
  if (flags.device.empty()) {
    return absl::InvalidArgumentError(
        "--device is missing: how much memory plays DEVICE of each rank, e.g. --device 1GiB");
  }
  const auto in_words = [](double rate) { return absl::StrCat(std::llround(rate), "/s"); };
  flags.gpu = kCpu;
  flags.tflops = rates.compute.flops_per_second / 1e12;
  flags.memory_bandwidth = in_words(rates.compute.memory_bytes_per_second);
  flags.pcie = flags.memory_bandwidth;
  flags.kernel_ns = rates.compute.kernel_ns;
  return absl::OkStatus();
}

// Returns how many threads an operator of the run has on the machine that was measured.
int64_t ThreadsOf(const trainer::RunConfig& run, const RankRates& rates) {
  if (run.threads > 0) return run.threads;
  return trainer::ThreadsOfRank(rates.num_processors, rates.num_processors, rates.num_ranks);
}

// Returns what gemini-trace is asked for: the run with what the flags say in place of its keys.
absl::StatusOr<trainer::RanksRequest> DryRunOf(const PlanFlags& flags, trainer::RunConfig run,
                                               const trainer::TaskWish& wish, int64_t sequence,
                                               const RankRates& rates) {
  run.batch = flags.batch;
  run.sequence = sequence;
  run.accumulate = flags.accumulate;
  run.recompute = flags.recompute;
  run.has_documents = flags.has_documents;
  run.optimizer = flags.optimizer;
  run.moments = flags.moments;
  run.threads = ThreadsOf(run, rates);
  if (run.steps == 0) run.steps = 1;  // A file of keys has some.
  GEMINI_ASSIGN_OR_RETURN(run.device_memory, ParseByteSize(flags.device));
  if (!flags.host.empty()) {
    GEMINI_ASSIGN_OR_RETURN(const int64_t host_bytes, ParseByteSize(flags.host));
    run.host_memory = host_bytes / flags.ranks;
  }
  if (!flags.chunk_size.empty()) {
    GEMINI_ASSIGN_OR_RETURN(run.chunk_size, ParseByteSize(flags.chunk_size));
  }
  return trainer::RanksRequest{
      .num_ranks = flags.ranks, .run = run, .task = wish, .rates = RatesOfProcessor(rates)};
}

// What a run or a search takes, for people and for programs.
struct Answer {
  std::string text;
  nlohmann::json json;
  bool fits = true;
};

// Returns the exit status.
int Print(const PlanFlags& flags, const Answer& answer) {
  const std::string text = flags.json ? absl::StrCat(JsonText(answer.json), "\n") : answer.text;
  std::fputs(text.c_str(), stdout);
  return answer.fits ? 0 : 1;
}

// Says why an answer is by formulas where a dry run of each rank was to be had.
void SayWhyFormulas(absl::string_view why, Answer& answer) {
  absl::StrAppend(&answer.text, "  by formulas, and not by a dry run of each rank: ", why, "\n");
  answer.json["why_formulas"] = std::string(why);
}

// Says how many threads an operator of the run has, beside those with which rates were measured.
void SayThreads(int64_t threads, Answer& answer) {
  answer.json["threads"] = threads;
  answer.json["threads_of_rates"] = kThreadsOfRates;
  if (threads == kThreadsOfRates) return;
  absl::StrAppend(&answer.text, "  threads      an operator of the run has ", threads,
                  ", and rates were measured with ", kThreadsOfRates,
                  ": what is said of time is of --threads ", kThreadsOfRates, "\n");
}

// Returns why such ranks are not run without memory, or OK.
absl::Status CheckDryRun(const PlanFlags& flags) {
  if (flags.search) return absl::UnimplementedError("a search tries more meshes than can be run");
  if (flags.ranks == 1) return absl::UnimplementedError("one rank exchanges nothing");
  if (flags.ranks <= kMostDryRanks) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("more than ", kMostDryRanks, " ranks are not run"));
}

// Whether what no dry run says is foretold by formulas.
bool HasFormulas(const absl::Status& no_dry_run) {
  return absl::IsFailedPrecondition(no_dry_run) || absl::IsUnimplemented(no_dry_run) ||
         absl::IsDeadlineExceeded(no_dry_run);
}

// Returns what dry runs of all ranks say. Errors: as TraceHelper::Ranks, but of a DEVICE that is
// too small, which is an answer.
absl::StatusOr<Answer> AskForDryRun(const PlanFlags& flags, const trainer::RanksRequest& request,
                                    const policies::ParallelRun& asked, const RankScale& scale) {
  TraceHelper helper(TraceHelper::ProgramBesideThis(), flags.model,
                     absl::Seconds(flags.trace_limit_seconds));
  const absl::StatusOr<trainer::RanksForecast> dry = helper.Ranks(request);
  if (LeastDeviceBytes(dry.status()).has_value()) {
    return Answer{MisfitText(asked, dry.status()), MisfitJson(scale, asked, dry.status()),
                  /*fits=*/false};
  }
  GEMINI_RETURN_IF_ERROR(dry.status());
  const DryRun found = {asked, *dry};
  Answer answer = {DryRunText(scale, found), DryRunJson(scale, found)};
  // Where HOST is not said, a run takes what it needs.
  const int64_t host_bytes = request.run.host_memory;
  const int64_t lacking_bytes =
      flags.host.empty() ? 0 : std::max<int64_t>(dry->host_bytes - host_bytes, 0);
  answer.fits = lacking_bytes == 0;
  answer.json["fits"] = answer.fits;
  answer.json["memory"]["lacking_bytes"] = lacking_bytes;
  if (!answer.fits) {
    absl::StrAppend(&answer.text, "  does not fit: a rank has ", FormatByteSize(host_bytes),
                    " of HOST, and lacks ", FormatByteSize(lacking_bytes), "\n");
  }
  return answer;
}

// Returns what formulas say of one mesh, or of the best ones.
absl::StatusOr<Answer> ForetellOne(const policies::ModelSizes& sizes,
                                   const policies::RankMachine& machine,
                                   const policies::ParallelRun& asked, const RankScale& scale) {
  GEMINI_ASSIGN_OR_RETURN(const policies::StepForecast forecast,
                          policies::ForetellStep(sizes, asked, machine));
  const policies::FoundMesh found = {asked, forecast};
  return Answer{RanksText(scale, found), RanksJson(scale, found), forecast.memory.lacking == 0};
}
absl::StatusOr<Answer> SearchAll(const PlanFlags& flags, const policies::ModelSizes& sizes,
                                 const policies::RankMachine& machine, policies::ParallelRun asked,
                                 const RankScale& scale) {
  asked.gathers_ahead = true;
  asked.adds_each = false;
  // All ranks can learn from as many.
  const int64_t of_rank = (kStepTokens / asked.sequence + flags.ranks - 1) / flags.ranks;
  const int64_t step_sequences =
      flags.step_sequences > 0 ? flags.step_sequences : std::max<int64_t>(of_rank, 1) * flags.ranks;
  GEMINI_ASSIGN_OR_RETURN(
      const policies::MeshSearch search,
      policies::SearchMeshes(sizes, machine, asked, flags.ranks, step_sequences, kNumBest));
  return Answer{absl::StrCat(step_sequences, " sequences a step, ", SearchText(scale, search)),
                SearchJson(scale, search), !search.best.empty()};
}

}  // namespace

absl::StatusOr<policies::RankMachine> RankMachineOf(const PlanFlags& flags, ElementType precision) {
  if (flags.gpus_per_node < 1) return absl::InvalidArgumentError("--gpus-per-node is at least 1");
  GEMINI_ASSIGN_OR_RETURN(const Machine machine, MachineOf(flags, precision));
  const auto on_node = static_cast<double>(std::min(flags.gpus_per_node, flags.ranks));
  policies::RankMachine rank = {
      .flops_per_second = machine.compute.flops_per_second,
      .memory_bytes_per_second = machine.compute.memory_bytes_per_second,
      .kernel_seconds = static_cast<double>(machine.compute.kernel_ns) / 1e9,
      .memory_bytes = static_cast<double>(machine.bytes[Tier::kDevice]),
      .host_bytes = static_cast<double>(machine.bytes[Tier::kHost]) / on_node,
      .host_bytes_per_second = machine.links.host_to_device,
      .host_updates_per_second = machine.links.update_elements_per_second / on_node,
      .network = {.ranks_per_node = flags.gpus_per_node,
                  .within = {kLinkLatencySeconds, machine.links.host_to_device},
                  .between = {kNetworkLatencySeconds, 0}}};
  const absl::StatusOr<GpuModel> gpu = FindGpu(flags.gpu);
  if (gpu.ok() && gpu->nvlink_bytes_per_second > 0) {
    rank.network.within.bytes_per_second = kAchievedNvlinkFraction * gpu->nvlink_bytes_per_second;
  }
  if (gpu.ok()) {
    rank.network.between.bytes_per_second =
        kAchievedNetworkFraction * gpu->network_bytes_per_second;
  }
  GEMINI_RETURN_IF_ERROR(ParseRate("--link", flags.link, rank.network.within.bytes_per_second));
  GEMINI_RETURN_IF_ERROR(
      ParseRate("--network", flags.network, rank.network.between.bytes_per_second));
  if (rank.network.between.bytes_per_second == 0 && flags.ranks > flags.gpus_per_node) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--network is missing: ", flags.ranks, " ranks are on several nodes of ",
        flags.gpus_per_node, ", and how fast one of them sends to another node is not in the ",
        "table; write it as 12GiB/s"));
  }
  // One node has no way out that is used.
  rank.network.between.bytes_per_second = std::max(rank.network.between.bytes_per_second, 1.0);
  return rank;
}

absl::StatusOr<policies::ParallelRun> ParallelRunOf(const PlanFlags& flags, trainer::RunConfig run,
                                                    ElementType precision, int64_t sequence,
                                                    int64_t num_blocks) {
  if (flags.batch < 1 || flags.accumulate < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--batch ", flags.batch, ", --accumulate ",
                                                   flags.accumulate, ": both are 1 or more"));
  }
  if (flags.optimizer_tier != "host" || !flags.nvme.empty()) {
    return absl::InvalidArgumentError(
        "--ranks foretells what lies on DEVICE and in HOST: leave --nvme and --optimizer-tier out");
  }
  if (run.sequence_parallel == "ring" && run.sequence_layout != "zigzag") {
    return absl::InvalidArgumentError(
        "of --sequence-parallel ring the layout zigzag alone is foretold");
  }
  run.accumulate = flags.accumulate;
  GEMINI_RETURN_IF_ERROR(CheckRunOfRanks(run, flags.ranks));
  GEMINI_ASSIGN_OR_RETURN(const policies::ParameterBytes bytes, BytesOf(flags, precision));
  GEMINI_ASSIGN_OR_RETURN(const policies::Mesh mesh, MeshOfKeys(run, flags.ranks));
  GEMINI_ASSIGN_OR_RETURN(const policies::TensorGrid grid, GridOfKeys(run, flags.ranks));
  GEMINI_ASSIGN_OR_RETURN(const policies::PipelineSchedule schedule,
                          policies::ParsePipelineSchedule(run.pipeline_schedule));
  std::vector<int64_t> split;
  if (!run.pipeline_split.empty()) {
    GEMINI_ASSIGN_OR_RETURN(split, policies::ParseStageSplit(run.pipeline_split, num_blocks,
                                                             run.pipeline * run.pipeline_chunks));
  }
  return policies::ParallelRun{.mesh = mesh,
                               .grid = grid,
                               .divides_sequences = run.sequence_parallel == "megatron",
                               .is_ring = run.sequence_parallel == "ring",
                               .zero_stage = run.zero_stage(),
                               .gathers_ahead = run.gather_ahead > 0,
                               .adds_each = !run.adds_gradients_once(),
                               .schedule = schedule,
                               .chunks = run.pipeline_chunks,
                               .split = split,
                               .sequence = sequence,
                               .batch = flags.batch,
                               .micro_batches = flags.accumulate,
                               .recompute = flags.recompute,
                               .bytes = bytes,
                               .activation_bytes = static_cast<double>(ElementBytes(precision))};
}

int RunRanksPlan(PlanFlags flags, const trainer::RunConfig& run) {
  std::optional<RankRates> measured;
  if (!flags.measured.empty()) {
    absl::StatusOr<RankRates> rates = ReadRankRates(flags.measured, flags.ranks);
    if (!rates.ok()) return Refuse(rates.status(), 2);
    if (const absl::Status status = ApplyRates(*rates, flags); !status.ok()) {
      return Refuse(status, 2);
    }
    measured = *rates;
  }
  const absl::StatusOr<ElementType> precision = PrecisionOf(flags);
  if (!precision.ok()) return Refuse(precision.status(), 2);
  absl::StatusOr<policies::RankMachine> machine = RankMachineOf(flags, *precision);
  if (!machine.ok()) return Refuse(machine.status(), 2);
  if (measured.has_value()) {
    machine->network.within = measured->link;
    machine->network.sum_bytes_per_second = measured->sum_bytes_per_second;
  }
  const absl::StatusOr<trainer::TaskWish> wish = TaskWishOf(run);
  if (!wish.ok()) return Refuse(wish.status(), 1);
  const absl::StatusOr<trainer::HfConfig> config = trainer::ReadHfConfig(flags.model, *wish);
  if (!config.ok()) return Refuse(config.status(), 1);
  const absl::StatusOr<int64_t> sequence = SequenceOf(flags, config->spec);
  if (!sequence.ok()) return Refuse(sequence.status(), 2);
  absl::StatusOr<policies::ParallelRun> asked =
      ParallelRunOf(flags, run, *precision, *sequence, config->spec.num_blocks);
  if (!asked.ok()) return Refuse(asked.status(), 2);
  const policies::ModelSizes sizes = trainer::SizesOf(config->spec, *sequence);
  RankScale scale = {.memory_bytes = machine->memory_bytes};
  if (const absl::StatusOr<GpuModel> gpu = FindGpu(flags.gpu); gpu.ok()) {
    scale.peak_fraction =
        machine->flops_per_second / (*precision == ElementType::kFp32 ? gpu->fp32_flops_per_second
                                                                      : gpu->half_flops_per_second);
  }
  const std::string head = absl::StrFormat(
      "%s, %.4g parameters, %d ranks of %s, %d a node; sequences of %d tokens\n",
      trainer::TitleOf(flags.model, *config), sizes.parameters(), flags.ranks,
      flags.gpu.empty() ? "a GPU of the rates given" : flags.gpu, flags.gpus_per_node, *sequence);
  if (!flags.search) {
    const absl::Status fits = policies::CheckMeshFits(sizes, *asked);
    if (!fits.ok()) return Refuse(fits, 2);
  }
  std::optional<Answer> answer;
  absl::Status no_dry_run = CheckDryRun(flags);
  if (measured.has_value() && no_dry_run.ok()) {
    const absl::StatusOr<trainer::RanksRequest> request =
        DryRunOf(flags, run, *wish, *sequence, *measured);
    if (!request.ok()) return Refuse(request.status(), 2);
    absl::StatusOr<Answer> dry = AskForDryRun(flags, *request, *asked, scale);
    no_dry_run = dry.status();
    if (dry.ok()) {
      answer = *std::move(dry);
    } else if (!HasFormulas(no_dry_run)) {
      return Refuse(no_dry_run, absl::IsInvalidArgument(no_dry_run) ? 2 : 1);
    }
  }
  if (!answer.has_value()) {
    absl::StatusOr<Answer> made = flags.search ? SearchAll(flags, sizes, *machine, *asked, scale)
                                               : ForetellOne(sizes, *machine, *asked, scale);
    if (!made.ok()) return Refuse(made.status(), 2);
    answer = *std::move(made);
    if (measured.has_value()) SayWhyFormulas(no_dry_run.message(), *answer);
  }
  answer->text.insert(0, head);
  if (measured.has_value()) SayThreads(ThreadsOf(run, *measured), *answer);
  return Print(flags, *answer);
}

}  // namespace gemini::tools
