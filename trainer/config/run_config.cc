// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/run_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/device_name.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "policies/pipeline/pipeline_schedule.h"
#include "trainer/config/decay_exemptions.h"

namespace gemini::trainer {
namespace {

// Refuses keys of how ranks share the work that do not belong together.
absl::Status CheckSharing(const SharingKeys& config) {
  const auto refuse = [](const auto&... message) {
    return absl::InvalidArgumentError(absl::StrCat(message...));
  };
  const std::string& sharing = config.sequence_parallel;
  if (config.pipeline == 1 && (config.pipeline_chunks > 1 || !config.pipeline_split.empty())) {
    return refuse(config.pipeline_chunks > 1
                      ? absl::StrCat("--pipeline-chunks ", config.pipeline_chunks)
                      : absl::StrCat("--pipeline-split ", config.pipeline_split),
                  " is of --pipeline: say how many ranks it has, or leave it out");
  }
  if (config.tensor_size > 1 && config.tensor == "none") {
    return refuse("--tensor-size ", config.tensor_size,
                  " is of --tensor: add --tensor 1d, or leave it out");
  }
  if (config.tensor_depth > 1 && config.tensor != "2.5d") {
    return refuse("--tensor-depth ", config.tensor_depth, " is of --tensor 2.5d, not of ",
                  config.tensor, ": leave it out, or take that");
  }
  if (sharing == "megatron" && config.tensor != "1d") {
    return refuse("--sequence-parallel megatron is of --tensor 1d: add that, or leave it out");
  }
  if (config.has_sequence_axis() && config.tensor != "none" && config.tensor != "1d") {
    return refuse("--sequence-parallel ", sharing, " with --tensor ", config.tensor,
                  ", which parts sequences itself: take --tensor 1d, or leave one of them out");
  }
  if (config.has_sequence_axis() && config.tensor == "1d" && config.tensor_size == 0 &&
      config.sequence_size == 0) {
    return refuse("--sequence-parallel ", sharing,
                  " with --tensor 1d: say how many ranks share what, by --tensor-size or "
                  "--sequence-size");
  }
  if (config.sequence_size > 1 && !config.has_sequence_axis()) {
    return refuse("--sequence-size ", config.sequence_size,
                  " is of --sequence-parallel ulysses or ring, not of ", sharing,
                  ": leave it out, or take one of these");
  }
  if (config.sequence_layout != "zigzag" && sharing != "ring") {
    return refuse("--sequence-layout ", config.sequence_layout,
                  " is of --sequence-parallel ring, not of ", sharing,
                  ": leave it out, or take that");
  }
  return absl::OkStatus();
}

// Refuses what a pipeline cannot do, by the keys alone.
absl::Status CheckPipeline(const RunConfig& config) {
  const auto refuse = [&](const auto&... message) {
    return absl::InvalidArgumentError(
        absl::StrCat("--pipeline ", config.pipeline, ": ", message...));
  };
  if (config.micro_batch_schedule == "vertical") {
    return refuse("--micro-batch-schedule vertical has each block run all micro-batches at once, ",
                  "and the ranks behind it would wait: take horizontal");
  }
  GEMINI_ASSIGN_OR_RETURN(const policies::PipelineSchedule schedule,
                          policies::ParsePipelineSchedule(config.pipeline_schedule));
  // What else a schedule wants of the numbers. The lists themselves may be too long for a typo.
  const absl::Status shape =
      policies::CheckPipelineShape(schedule, {.ranks = config.pipeline,
                                              .chunks = config.pipeline_chunks,
                                              .micro_batches = config.accumulate});
  return shape.ok() ? shape
                    : refuse("--pipeline-chunks ", config.pipeline_chunks, ", --accumulate ",
                             config.accumulate, ": ", shape.message());
}

}  // namespace

absl::Status CheckScheduleRuns(const RunConfig& config) {
  GEMINI_ASSIGN_OR_RETURN(const policies::PipelineSchedule schedule,
                          policies::ParsePipelineSchedule(config.pipeline_schedule));
  if (config.pipeline == 1 || !policies::SplitsBackward(schedule)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--pipeline ", config.pipeline,
                                                 ": --pipeline-schedule ", config.pipeline_schedule,
                                                 " is only foretold: take 1f1b or interleaved"));
}

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

std::string ToToml(RunConfig config) {
  return absl::StrCat("# The resolved configuration of a run of gemini-train.\n",
                      RunKeys(config).ToToml());
}

bool RunConfig::routes_experts(int64_t count, int64_t chosen) const {
  if (experts != "auto") return experts == "routed";
  // How probable it is, by routers that choose all alike, that a micro-batch leaves an expert out.
  // Where few are left out, a plan moves the bytes earlier than a router can ask for them.
  constexpr double kLeastLeftOut = 0.1;
  const double not_chosen = 1 - static_cast<double>(chosen) / static_cast<double>(count);
  return std::pow(not_chosen, static_cast<double>(batch * sequence)) > kLeastLeftOut;
}

int RunConfig::zero_stage() const {
  // In a pipeline the others send as often as there are micro-batches.
  if (zero == "auto") return pipeline > 1 ? 1 : 3;
  return zero.front() - '0';
}

bool RunConfig::adds_gradients_once() const {
  const bool has_room = zero_stage() <= 1;
  return accumulate > 1 && (gradient_sync == "last" || (gradient_sync == "auto" && has_room));
}

int64_t SharingKeys::tensor_ranks(int64_t num_ranks) const {
  if (tensor == "none") return 1;
  if (tensor_size > 0) return tensor_size;
  return std::max<int64_t>(num_ranks / pipeline / std::max<int64_t>(sequence_size, 1), 1);
}

int64_t SharingKeys::sequence_ranks(int64_t num_ranks) const {
  if (!has_sequence_axis()) return 1;
  if (sequence_size > 0) return sequence_size;
  return std::max<int64_t>(num_ranks / pipeline / tensor_ranks(num_ranks), 1);
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
  if (config.vocabulary_blocks > 1 &&
      (IsLayerWise(config.optimizer_kind()) || config.rounding_seed() != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--vocabulary-blocks ", config.vocabulary_blocks, " would change the numbers of ",
        IsLayerWise(config.optimizer_kind())
            ? absl::StrCat("--optimizer ", config.optimizer, ", which needs the norm of a tensor")
            : "--moment-rounding stochastic, which is drawn by tensor",
        ": leave one of them out"));
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
  GEMINI_RETURN_IF_ERROR(CheckSharing(config));
  if (config.no_save && config.save_every > 0) {
    return absl::InvalidArgumentError(
        "--no-save saves nothing, and --save-every does: give one of them");
  }
  if (config.eval_every > 0 && config.eval_data.empty()) {
    return absl::InvalidArgumentError("--eval-every needs --eval-data FILE");
  }
  // The whole batch is one index into the data: position * sequence must not overflow.
  if (config.batch * config.accumulate > (int64_t{1} << 20)) {
    return absl::InvalidArgumentError(absl::StrCat("--batch ", config.batch, " times --accumulate ",
                                                   config.accumulate, " is more than ",
                                                   int64_t{1} << 20, " sequences a step"));
  }
  return absl::OkStatus();
}

absl::Status CheckRunOfRanks(const RunConfig& config, int64_t num_ranks) {
  if (config.pipeline > 1) GEMINI_RETURN_IF_ERROR(CheckPipeline(config));
  if (num_ranks == 1) return absl::OkStatus();
  const auto refuse = [&](absl::string_view what, absl::string_view why) {
    return absl::UnimplementedError(absl::StrCat(what, " with ", num_ranks, " ranks: ", why));
  };
  if (config.reference) return refuse("--reference", "it has the whole model in one process");
  if (config.gpu().has_value() && config.transport == "mpi") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--transport mpi with --device ", config.device,
        ": MPI exchanges what lies in host memory, and not what GPUs compute: leave it out, for "
        "NCCL, or --device"));
  }
  if (config.gpu().has_value() && !config.daemon.empty() && !config.share_gpu) {
    return refuse("--daemon",
                  "a geminid has one GPU: leave it out, and each rank has a server for its own");
  }
  if (config.moment_rounding == "stochastic") {
    return refuse("--moment-rounding stochastic",
                  "its numbers follow from tensors, not from parts");
  }
  if (config.gradient_sync == "last" && config.zero_stage() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gradient-sync last with --zero ", config.zero_stage(),
                     ": a rank has no room there for gradients of the whole model: --zero 1 has"));
  }
  if (config.gather_ahead > 0 && config.zero_stage() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gather-ahead with --zero ", config.zero_stage(),
                     config.zero == "auto" ? ", the default of a pipeline" : "",
                     ": nothing is gathered where it is used there: leave it out"));
  }
  if (config.vocabulary_blocks > 1) {
    return refuse("--vocabulary-blocks", "ranks have parts of the table as of all else");
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
