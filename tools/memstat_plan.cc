// SPDX-License-Identifier: Apache-2.0
#include "tools/memstat_plan.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "gemini/byte_size.h"
#include "gemini/json_text.h"
#include "gemini/layout.h"
#include "gemini/nearest_name.h"
#include "gemini/plan/plan_wire.h"
#include "gemini/system/status_macros.h"
#include "server/plans/machine_costs.h"
#include "tools/forecast_advice.h"
#include "tools/forecast_view.h"
#include "tools/gpu_table.h"
#include "tools/ranks_plan.h"
#include "tools/recorded_round.h"
#include "tools/trace_helper.h"
#include "trainer/checkpoint/replace_file.h"
#include "trainer/config/mesh_of_keys.h"
#include "trainer/data/task_wish_of_run.h"
#include "trainer/data/training_data.h"
#include "trainer/families/hf_config.h"
#include "trainer/families/parameter_count.h"
#include "trainer/forecast/round_of_run.h"

namespace gemini::tools {
namespace {

// Rates of drives on four lanes of PCIe 3, which most machines with such GPUs have.
constexpr double kNvmeReadBytesPerSecond = 3.0e9;
constexpr double kNvmeWriteBytesPerSecond = 2.5e9;
// AdamW moves 26 bytes a parameter in bf16 and 28 in fp32: two channels of DDR4, 35 of 51 GB/s.
constexpr double kUpdateElementsPerSecond = 1.25e9;
constexpr int kLargestKeptBytes = 32 << 20;  // Of one block: more malloc does not accept.
constexpr int kKeptBytes = 1 << 30;
constexpr int64_t kMostRanks = int64_t{1} << 17;
constexpr int64_t kMostLimitSeconds = int64_t{1} << 30;

absl::Status Wrong(const char* flag, absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", text, ": ", why));
}

// Leaves `bytes` alone when there is no text.
absl::Status Size(const char* flag, const std::string& text, int64_t& bytes) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<int64_t> size = ParseByteSize(text);
  if (!size.ok()) return Wrong(flag, text, size.status().message());
  bytes = *size;
  return absl::OkStatus();
}

absl::Status ChunkSize(const PlanFlags& flags, int64_t& bytes) {
  GEMINI_RETURN_IF_ERROR(Size("--chunk-size", flags.chunk_size, bytes));
  if (bytes % kPageBytes == 0 && (bytes > 0 || flags.chunk_size.empty())) return absl::OkStatus();
  return Wrong("--chunk-size", flags.chunk_size, "it must be a multiple of 4KiB");
}

// Returns the table's entry, or all zeros for a GPU that the flags alone describe.
absl::StatusOr<GpuModel> GpuOf(const PlanFlags& flags) {
  if (!flags.gpu.empty() && flags.gpu != kCpu) {
    absl::StatusOr<GpuModel> gpu = FindGpu(flags.gpu);
    if (!gpu.ok()) return absl::InvalidArgumentError(gpu.status().message());
    return gpu;
  }
  // A trace has the times of its operators.
  if ((flags.tflops > 0 || !flags.trace.empty()) && !flags.memory_bandwidth.empty() &&
      !(flags.pcie.empty() && flags.costs.empty()) && !flags.device.empty()) {
    return GpuModel();
  }
  return absl::InvalidArgumentError(
      "give --gpu NAME (--gpu list shows them), or all of --device, --tflops, --memory-bandwidth "
      "and --pcie");
}

absl::StatusOr<Job> JobOf(const PlanFlags& flags, ElementType precision,
                          const trainer::ModelSpec& spec, int64_t device_bytes) {
  const std::optional<MomentFormat> moments = MomentFormatOf(flags.moments);
  if (!moments) return Wrong("--moments", flags.moments, "it is fp32 or 8bit");
  const std::optional<OptimizerKind> optimizer = OptimizerKindOf(flags.optimizer);
  if (!optimizer) return Wrong("--optimizer", flags.optimizer, "it is one of gemini-train's");
  if (flags.optimizer_tier != "host" && flags.optimizer_tier != "nvme") {
    return Wrong("--optimizer-tier", flags.optimizer_tier, "it is host or nvme");
  }
  GEMINI_ASSIGN_OR_RETURN(const int64_t sequence, SequenceOf(flags, spec));
  Job job;
  job.round = {.train = true,
               .batch = flags.batch,
               .sequence = sequence,
               .micro_batches = flags.accumulate,
               .recompute = flags.recompute,
               .element = precision,
               .optimizer = *optimizer,
               .moments = *moments,
               .states_on_nvme = flags.optimizer_tier == "nvme",
               .has_documents = flags.has_documents,
               .on_cpu = flags.gpu == kCpu};
  job.round.vocabulary_blocks = flags.vocabulary_blocks > 0
                                    ? flags.vocabulary_blocks
                                    : VocabularyBlocks(spec, job.round, device_bytes);
  GEMINI_RETURN_IF_ERROR(ChunkSize(flags, job.chunk_bytes));
  return job;
}

// Refuses keys of several ranks.
absl::Status CheckIsForOne(const trainer::RunConfig& run) {
  GEMINI_RETURN_IF_ERROR(CheckRunOfRanks(run, 1));
  GEMINI_RETURN_IF_ERROR(MeshOfKeys(run, 1).status());
  return GridOfKeys(run, 1).status();
}

// Sets what keys of gemini-train say in place of flags, and `run` to all of them.
absl::Status ApplyTrainKeys(PlanFlags& flags, trainer::RunConfig& run) {
  const KeyTable keys = trainer::RunKeys(run);
  if (!flags.task.empty()) return keys.Set("task", flags.task, "--task");  // There are no others.
  if (flags.train_keys.empty()) return absl::OkStatus();
  GEMINI_ASSIGN_OR_RETURN(const Flags given, keys.ParseFlags(flags.train_keys));
  GEMINI_RETURN_IF_ERROR(keys.Apply(given));
  if (run.micro_batch_schedule != "horizontal" || run.policy != "auto") {
    return absl::UnimplementedError(
        "steps of --micro-batch-schedule horizontal and --policy auto alone are foretold");
  }
  if (flags.ranks == 0) {
    const absl::Status alone = CheckIsForOne(run);
    if (!alone.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(alone.message(), ": --ranks N says how many there are, before the keys"));
    }
  }
  const trainer::RoundShape round = trainer::RoundOf(run);
  if (!run.model.empty()) flags.model = run.model;
  flags.batch = round.batch;
  flags.sequence = round.sequence;
  flags.accumulate = round.micro_batches;
  flags.recompute = round.recompute;
  flags.precision = run.precision;
  flags.moments = run.moments;
  flags.optimizer = run.optimizer;
  flags.optimizer_tier = run.optimizer_tier;
  flags.vocabulary_blocks = run.vocabulary_blocks;
  const auto set_size = [](std::string& flag, int64_t bytes) {
    if (bytes != kAutoBytes) flag = absl::StrCat(bytes);
  };
  set_size(flags.device, run.device_memory);
  // --host is a node's, and the key a rank's.
  const int64_t on_node =
      flags.ranks > 0 ? std::max<int64_t>(std::min(flags.gpus_per_node, flags.ranks), 1) : 1;
  if (run.host_memory != kAutoBytes &&
      run.host_memory > std::numeric_limits<int64_t>::max() / on_node) {
    return absl::InvalidArgumentError(absl::StrCat("--host-memory ", run.host_memory,
                                                   " of each of ", on_node,
                                                   " ranks is more than can be counted"));
  }
  set_size(flags.host, run.host_memory == kAutoBytes ? kAutoBytes : run.host_memory * on_node);
  set_size(flags.chunk_size, run.chunk_size);
  if (!run.nvme.empty()) {
    int64_t bytes = 0;
    for (const NvmeDirectory& directory : run.nvme) bytes += directory.capacity_bytes;
    flags.nvme = absl::StrCat(bytes);
  }
  if (run.device_bandwidth > 0) flags.pcie = absl::StrCat(run.device_bandwidth, "/s");
  return absl::OkStatus();
}

// Sets what the run's data say of their rows. Without the file, which may be on another machine, it
// does nothing.
absl::Status ApplyRows(const trainer::RunConfig& run, PlanFlags& flags) {
  if (run.data.empty()) return absl::OkStatus();
  constexpr int64_t kAny = 2;  // A text has the length that is asked for.
  absl::StatusOr<trainer::TrainingData> data = trainer::TrainingData::Open(run.data, kAny);
  if (absl::IsNotFound(data.status())) return absl::OkStatus();
  GEMINI_RETURN_IF_ERROR(data.status());
  const bool has_rows =
      data->examples() != nullptr || data->labeled() != nullptr || data->alignments() != nullptr;
  if (!has_rows) return absl::OkStatus();
  const int64_t sequence = data->sequence_tokens();
  if (run.sequence > 0 && run.sequence != sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data ", run.data, " has rows of ", sequence,
                     " tokens, and the run has sequences of ", run.sequence, ": give --sequence ",
                     sequence, ", or prepare the data with --sequence ", run.sequence));
  }
  flags.sequence = sequence;
  // Whether there is padding only all rows say. Of a causal model it makes no difference.
  flags.has_documents =
      data->labeled() != nullptr ||
      (data->examples() != nullptr &&
       (data->examples()->rows().is_packed() || data->task().kind == trainer::TaskKind::kMasked));
  return absl::OkStatus();
}

absl::Status ReadCosts(const std::string& path, CostModel& costs) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::optional<server::KnownCosts> known = server::ParseCosts(text);
  if (!known) return Wrong("--costs", path, "it is no cost model of a geminid's state directory");
  costs = known->costs;
  return absl::OkStatus();
}

// The budgets and rates that flags say, in place of those that are there.
absl::Status SetBudgets(const PlanFlags& flags, TierMap<int64_t>& bytes) {
  GEMINI_RETURN_IF_ERROR(Size("--device", flags.device, bytes[Tier::kDevice]));
  GEMINI_RETURN_IF_ERROR(Size("--host", flags.host, bytes[Tier::kHost]));
  return Size("--nvme", flags.nvme, bytes[Tier::kNvme]);
}

absl::Status SetRates(const PlanFlags& flags, CostModel& links) {
  if (!flags.costs.empty()) GEMINI_RETURN_IF_ERROR(ReadCosts(flags.costs, links));
  if (!flags.pcie.empty()) {
    GEMINI_RETURN_IF_ERROR(ParseRate("--pcie", flags.pcie, links.host_to_device));
    links.device_to_host = links.host_to_device;
  }
  GEMINI_RETURN_IF_ERROR(ParseRate("--nvme-read", flags.nvme_read, links.nvme_read));
  GEMINI_RETURN_IF_ERROR(ParseRate("--nvme-write", flags.nvme_write, links.nvme_write));
  if (flags.update_rate < 0) return absl::InvalidArgumentError("--update-rate must be above 0");
  if (flags.update_rate > 0) links.update_elements_per_second = flags.update_rate;
  return absl::OkStatus();
}

int Refuse(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "memstat plan: %s\n", std::string(status.message()).c_str());
  return exit_status;
}

int Print(const PlanFlags& flags, const ForecastTitle& title, const std::optional<Job>& job,
          const Machine& machine, const Forecast& forecast,
          std::optional<absl::Span<const Advice>> advice) {
  const std::string text =
      flags.json ? JsonText(ForecastJson(title, job, machine, forecast, advice)) + "\n"
                 : ForecastText(title, job, machine, forecast, advice);
  std::fputs(text.c_str(), stdout);
  if (!flags.plan_file.empty() && forecast.is_predicted()) {
    const absl::Status written = trainer::ReplaceFile(flags.plan_file, EncodePlan(forecast.plan));
    if (!written.ok()) return Refuse(written, 1);
  }
  return forecast.fit.ok() ? 0 : 1;
}

// Forecasts a round that gemini-trace foretold before, from its file.
int RunTraced(const PlanFlags& flags) {
  std::ifstream file(flags.trace, std::ios::binary);
  if (!file) {
    return Refuse(absl::NotFoundError(absl::StrCat("--trace ", flags.trace, ": cannot be read")),
                  1);
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<trainer::TraceReply> reply = trainer::ParseReply(text);
  if (!reply.ok()) {
    return Refuse(absl::Status(reply.status().code(),
                               absl::StrCat("--trace ", flags.trace, ": no trace of gemini-trace: ",
                                            reply.status().message())),
                  1);
  }
  const trainer::RoundShape& round = reply->request.round;
  absl::StatusOr<Machine> machine = MachineOf(flags, round.element);
  int64_t chunk_bytes = 0;
  absl::Status status = machine.status();
  status.Update(ChunkSize(flags, chunk_bytes));
  if (!status.ok()) return Refuse(status, 2);
  machine->compute = reply->request.rate;  // Its times are in the trace.
  absl::StatusOr<Forecast> forecast = MakeForecast(reply->made, chunk_bytes, *machine);
  if (!forecast.ok()) return Refuse(forecast.status(), 2);
  forecast->tokens = round.batch * round.sequence * round.micro_batches;
  const ForecastTitle title = {reply->model,
                               flags.gpu.empty() ? "a GPU of the rates given" : flags.gpu};
  return Print(flags, title, Job{round, chunk_bytes}, *machine, *forecast, std::nullopt);
}

int RunRecorded(const PlanFlags& flags,
                absl::FunctionRef<absl::StatusOr<std::unique_ptr<client::Connection>>()> connect) {
  const absl::StatusOr<std::unique_ptr<client::Connection>> server = connect();
  if (!server.ok()) return Refuse(server.status(), 1);
  absl::StatusOr<std::optional<RecordedRound>> found =
      FindRecordedRound(**server, flags.space, flags.space, flags.phase);
  if (!found.ok()) return Refuse(found.status(), 1);
  if (!found->has_value()) {
    return Refuse(
        absl::NotFoundError(absl::StrCat(
            "no plan was made yet for phase '", flags.phase, "' of space ", flags.space,
            ": a job has one from its second step on at the latest, unless its policy is online")),
        1);
  }
  RecordedRound& round = **found;
  Machine machine = {.bytes = round.budget_bytes, .compute = {}, .links = round.costs};
  absl::Status status = SetBudgets(flags, machine.bytes);
  status.Update(SetRates(flags, machine.links));
  status.Update(ChunkSize(flags, round.chunk_bytes));
  if (!status.ok()) return Refuse(status, 2);
  const absl::StatusOr<Forecast> forecast =
      MakeForecast(round.trace, round.chunk_bytes, round.policy, machine);
  if (!forecast.ok()) return Refuse(forecast.status(), 2);
  const ForecastTitle title = {absl::StrCat("space ", flags.space),
                               absl::StrCat("phase ", flags.phase, ", as recorded")};
  return Print(flags, title, /*job=*/std::nullopt, machine, *forecast, std::nullopt);
}

}  // namespace

CLI::App* AddPlanCommand(CLI::App& app, PlanFlags& flags) {
  CLI::App* plan = app.add_subcommand(
      "plan",
      "What a model needs and takes on a machine, from its config.json alone, or a running job "
      "from what it recorded");
  plan->add_option("--model", flags.model, "Directory with a config.json");
  plan->add_option("--trace", flags.trace,
                   "In place of --model: a file of gemini-trace. Its round and the times of its "
                   "operators are those that gemini-trace was asked for (--print-request)");
  plan->add_option("--space", flags.space,
                   "In place of --model: the first space of a running job, as memstat shows it. "
                   "Its budgets and rates are those of its plan unless flags say others");
  plan->add_option("--task", flags.task,
                   "What the model learns, as gemini-train has it; default: what config.json says");
  plan->add_option("--phase", flags.phase, "With --space: train, eval, or the job's own")
      ->capture_default_str();
  plan->add_option("--gpu", flags.gpu, "Its name, 'cpu' where the CPU plays DEVICE, or 'list'");
  plan->add_option("--device", flags.device,
                   "GPU memory for Gemini; default: the GPU's, less the driver's");
  plan->add_option("--host", flags.host, "Host memory for Gemini, e.g. 64GiB");
  plan->add_option("--nvme", flags.nvme, "Room on NVMe, e.g. 1TiB; default: none");
  plan->add_option("--precision", flags.precision,
                   "fp32, bf16 or fp16; default: bf16 if the GPU has it");
  plan->add_option("--optimizer", flags.optimizer, "As gemini-train has them")
      ->capture_default_str();
  plan->add_option("--moments", flags.moments, "Of the optimizer: fp32 or 8bit")
      ->capture_default_str();
  plan->add_option("--optimizer-tier", flags.optimizer_tier,
                   "Home of the optimizer's states: host or nvme")
      ->capture_default_str();
  plan->add_option("--batch", flags.batch, "Sequences a micro-batch")->capture_default_str();
  plan->add_option("--sequence", flags.sequence,
                   "Tokens a sequence; default: what the model has, at most 1024");
  plan->add_option("--accumulate", flags.accumulate, "Micro-batches a step")->capture_default_str();
  plan->add_flag("--recompute", flags.recompute, "Keep each block's input alone for backward");
  plan->add_option("--chunk-size", flags.chunk_size, "Default: the best of 64KiB to 64MiB");
  plan->add_option("--tflops", flags.tflops, "What matrix products achieve, 10^12 FLOP a second");
  plan->add_option("--memory-bandwidth", flags.memory_bandwidth,
                   "Of the GPU's memory, e.g. 700GiB/s");
  plan->add_option("--pcie", flags.pcie, "Each direction, e.g. 12GiB/s");
  plan->add_option("--nvme-read", flags.nvme_read, "e.g. 6GiB/s");
  plan->add_option("--nvme-write", flags.nvme_write, "e.g. 4GiB/s");
  plan->add_option("--update-rate", flags.update_rate,
                   "Parameters a second through AdamW on the CPU");
  plan->add_option("--kernel-time", flags.kernel_ns,
                   "Of each kernel beside its work, in nanoseconds; default: 4000");
  plan->add_option("--costs", flags.costs,
                   "Rates of links, disks and updates as a geminid keeps them: a file of its "
                   "--state-dir");
  plan->add_option("--plan-file", flags.plan_file,
                   "Gets the plan itself, as a daemon sends it (gemini/plan.fbs)");
  plan->add_option("--trace-limit", flags.trace_limit_seconds,
                   "Seconds that gemini-trace may take for an answer; behind that, ranks have "
                   "formulas, and there is no forecast of one GPU")
      ->check(CLI::Range(int64_t{1}, kMostLimitSeconds))
      ->capture_default_str();
  plan->add_flag("--json", flags.json, "JSON, in bytes and nanoseconds");
  plan->add_flag(
      "--print-request", flags.print_request,
      "Only print what gemini-trace is to be asked on another machine, with the GPU's rates");
  CLI::Option* const keys = plan->add_option(
      "KEYS", flags.train_keys,
      "Behind --: the keys of gemini-train with which the job will be started, in place of the "
      "flags that say the same");
  for (const char* const name :
       {"--task", "--batch", "--sequence", "--accumulate", "--recompute", "--precision",
        "--optimizer", "--moments", "--optimizer-tier", "--chunk-size"}) {
    keys->excludes(plan->get_option(name));
  }
  CLI::Option* const traced = plan->get_option("--trace");
  for (const char* const name :
       {"--model", "--task", "--batch", "--sequence", "--accumulate", "--recompute", "--precision",
        "--optimizer", "--moments", "--optimizer-tier", "--tflops", "--kernel-time",
        "--print-request"}) {
    traced->excludes(plan->get_option(name));
  }
  traced->excludes(keys);
  CLI::Option* const ranks = plan->add_option(
      "--ranks", flags.ranks,
      "So many GPUs train together: how, the keys of gemini-train say behind --, as -- --pipeline "
      "4 "
      "--tensor 1d --tensor-size 8. --host is that of a node; without it nothing leaves the GPUs");
  ranks->check(CLI::Range(int64_t{1}, kMostRanks));
  plan->add_option("--gpus-per-node", flags.gpus_per_node, "Of --ranks")
      ->capture_default_str()
      ->needs(ranks);
  plan->add_option("--link", flags.link,
                   "Of a GPU to others of its node, each direction, e.g. 200GiB/s; default: the "
                   "GPU's NVLink, or PCIe")
      ->needs(ranks);
  plan->add_option("--network", flags.network,
                   "A GPU's part of its node's way out, each direction, e.g. 20GiB/s; default: "
                   "that of the vendor's nodes")
      ->needs(ranks);
  CLI::Option* const measured = plan->add_option(
      "--measured", flags.measured,
      "Of --ranks on processors: what gemini-bench ranks measured of this machine, a file");
  measured->needs(ranks);
  for (const char* const name : {"--gpu", "--tflops", "--memory-bandwidth", "--pcie", "--costs",
                                 "--kernel-time", "--gpus-per-node", "--link", "--network"}) {
    measured->excludes(plan->get_option(name));
  }
  CLI::Option* const search = plan->add_flag(
      "--search", flags.search, "Find the fastest way in which the ranks can share the work");
  search->needs(ranks);
  plan->add_option("--step-sequences", flags.step_sequences,
                   "Of all ranks in a step, for --search; default: 4 Mi tokens")
      ->check(CLI::PositiveNumber)
      ->needs(search);
  for (const char* const name : {"--trace", "--space", "--print-request", "--plan-file",
                                 "--chunk-size", "--nvme-read", "--nvme-write"}) {
    ranks->excludes(plan->get_option(name));
  }
  search->excludes(keys);
  for (const char* const name : {"--batch", "--accumulate", "--recompute"}) {
    search->excludes(plan->get_option(name));
  }
  for (CLI::Option* const other :
       {traced, keys, plan->get_option("--task"), plan->get_option("--print-request")}) {
    plan->get_option("--space")->excludes(other);
  }
  return plan;
}

absl::StatusOr<ElementType> PrecisionOf(const PlanFlags& flags) {
  GEMINI_ASSIGN_OR_RETURN(const GpuModel gpu, GpuOf(flags));
  if (flags.precision.empty()) {
    if (flags.gpu == kCpu) return ElementType::kFp32;  // As gemini-train.
    return gpu.has_bf16 ? ElementType::kBf16 : ElementType::kFp16;
  }
  std::vector<absl::string_view> names;
  for (const ElementType precision : kAllElementTypes) {
    names.push_back(ElementTypeName(precision));
    if (flags.precision != names.back()) continue;
    if (precision == ElementType::kBf16 && !gpu.has_bf16) {
      return Wrong("--precision", flags.precision,
                   absl::StrCat(gpu.name, " has no bf16: use --precision fp16"));
    }
    return precision;
  }
  return Wrong("--precision", flags.precision,
               absl::StrCat("it is fp32, bf16 or fp16", DidYouMean(flags.precision, names)));
}

absl::StatusOr<Machine> MachineOf(const PlanFlags& flags, ElementType precision) {
  GEMINI_ASSIGN_OR_RETURN(const GpuModel gpu, GpuOf(flags));
  Machine machine;
  machine.bytes[Tier::kDevice] = gpu.memory_bytes - kContextBytes;
  if (flags.host.empty() && flags.ranks == 0) {
    return absl::InvalidArgumentError("--host is missing: how much host memory, e.g. --host 64GiB");
  }
  GEMINI_RETURN_IF_ERROR(SetBudgets(flags, machine.bytes));
  const double peak =
      precision == ElementType::kFp32 ? gpu.fp32_flops_per_second : gpu.half_flops_per_second;
  machine.compute.flops_per_second = kAchievedFlopsFraction * peak;
  if (flags.tflops < 0) return absl::InvalidArgumentError("--tflops must be above 0");
  if (flags.tflops > 0) machine.compute.flops_per_second = flags.tflops * 1e12;
  machine.compute.memory_bytes_per_second = kAchievedMemoryFraction * gpu.memory_bytes_per_second;
  GEMINI_RETURN_IF_ERROR(ParseRate("--memory-bandwidth", flags.memory_bandwidth,
                                   machine.compute.memory_bytes_per_second));
  if (flags.kernel_ns < 0) return absl::InvalidArgumentError("--kernel-time must be above 0");
  machine.compute.kernel_ns = flags.kernel_ns > 0 ? flags.kernel_ns : kKernelNs;

  CostModel& links = machine.links;
  links.host_to_device =
      kAchievedPcieFraction * PcieBytesPerSecond(gpu.pcie_generation, gpu.pcie_lanes);
  links.device_to_host = links.host_to_device;
  links.nvme_read = kNvmeReadBytesPerSecond;
  links.nvme_write = kNvmeWriteBytesPerSecond;
  links.update_elements_per_second = kUpdateElementsPerSecond;
  links.device_update_elements_per_second =
      machine.compute.memory_bytes_per_second / kBytesAnUpdate;
  if (flags.gpu != kCpu) links.copy_latency_ns = kGpuCopyLatencyNs;
  GEMINI_RETURN_IF_ERROR(SetRates(flags, links));
  return machine;
}

absl::StatusOr<trainer::TaskWish> TaskWishOf(const trainer::RunConfig& run) {
  absl::StatusOr<trainer::TaskWish> wish = trainer::TaskWishOfRun(run.task, run.data);
  // A job of another machine may have its data there.
  if (absl::IsNotFound(wish.status())) return trainer::TaskWish{.name = run.task};
  return wish;
}

absl::StatusOr<int64_t> SequenceOf(const PlanFlags& flags, const trainer::ModelSpec& spec) {
  if (flags.sequence == 0) return spec.default_sequence();
  if (flags.sequence < 0) return absl::InvalidArgumentError("--sequence must be above 0");
  if (flags.sequence <= spec.max_sequence) return flags.sequence;
  return absl::InvalidArgumentError(absl::StrCat("--sequence ", flags.sequence, ": the model has ",
                                                 spec.max_sequence, " positions"));
}

absl::Status ParseRate(const char* flag, const std::string& text, double& rate) {
  if (text.empty()) return absl::OkStatus();
  absl::string_view size_text = text;
  if (!absl::ConsumeSuffix(&size_text, "/s")) return Wrong(flag, text, "write it as 12GiB/s");
  const absl::StatusOr<int64_t> size = ParseByteSize(size_text);
  if (!size.ok()) return Wrong(flag, text, size.status().message());
  if (*size == 0) return Wrong(flag, text, "it must be above 0");
  rate = static_cast<double>(*size);
  return absl::OkStatus();
}

int RunPlan(PlanFlags flags,
            absl::FunctionRef<absl::StatusOr<std::unique_ptr<client::Connection>>()> connect) {
  if (flags.gpu == "list") {
    std::fputs(GpuListText().c_str(), stdout);
    return 0;
  }
  if (!flags.measured.empty()) flags.gpus_per_node = flags.ranks;  // One machine was measured.
  trainer::RunConfig run;
  if (const absl::Status status = ApplyTrainKeys(flags, run); !status.ok()) {
    return Refuse(status, 2);
  }
  if (const absl::Status status = ApplyRows(run, flags); !status.ok()) return Refuse(status, 1);
  if (!flags.space.empty()) return RunRecorded(flags, connect);
  if (!flags.trace.empty()) return RunTraced(flags);
  if (flags.model.empty()) {
    return Refuse(absl::InvalidArgumentError("--model is missing: a directory with a config.json"),
                  2);
  }
  if (flags.ranks > 0) return RunRanksPlan(flags, run);
  const absl::StatusOr<ElementType> precision = PrecisionOf(flags);
  if (!precision.ok()) return Refuse(precision.status(), 2);
  const absl::StatusOr<Machine> machine = MachineOf(flags, *precision);
  if (!machine.ok()) return Refuse(machine.status(), 2);
  const absl::StatusOr<trainer::TaskWish> wish = TaskWishOf(run);
  if (!wish.ok()) return Refuse(wish.status(), 1);
  const absl::StatusOr<trainer::HfConfig> config = trainer::ReadHfConfig(flags.model, *wish);
  if (!config.ok()) return Refuse(config.status(), 1);
  const absl::StatusOr<Job> job =
      JobOf(flags, *precision, config->spec, machine->bytes[Tier::kDevice]);
  if (!job.ok()) return Refuse(job.status(), 2);
  if (flags.print_request) {
    std::puts(trainer::EncodeRequest({job->round, machine->compute, *wish}).c_str());
    return 0;
  }
  // Plan after plan takes large blocks and gives them back: what goes to the system comes back page
  // by page, which takes a tenth of the time.
  ::mallopt(M_MMAP_THRESHOLD, kLargestKeptBytes);
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  const ForecastTitle title = {trainer::TitleOf(flags.model, *config),
                               flags.gpu.empty() ? "a GPU of the rates given" : flags.gpu};
  TraceHelper helper(TraceHelper::ProgramBesideThis(), flags.model,
                     absl::Seconds(flags.trace_limit_seconds));
  const auto trace = [&](trainer::TraceRequest request) {
    request.task = *wish;
    return helper.Trace(request);
  };
  const absl::StatusOr<Forecast> forecast = MakeForecast(*job, *machine, trace);
  if (absl::IsFailedPrecondition(forecast.status()) ||
      absl::IsDeadlineExceeded(forecast.status())) {
    return Refuse(absl::FailedPreconditionError(
                      absl::StrCat(title.model, " has ", trainer::NumParameters(config->spec),
                                   " parameters, but what a step of it takes cannot be said: ",
                                   forecast.status().message(),
                                   ". --trace FILE takes a step that was foretold elsewhere")),
                  1);
  }
  if (!forecast.ok()) {
    return Refuse(forecast.status(), absl::IsInvalidArgument(forecast.status()) ? 2 : 1);
  }
  const std::vector<Advice> advice = Advise(*job, *machine, *forecast, trace);
  return Print(flags, title, *job, *machine, *forecast, absl::MakeConstSpan(advice));
}

}  // namespace gemini::tools
