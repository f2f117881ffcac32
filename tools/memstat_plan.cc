// SPDX-License-Identifier: Apache-2.0
#include "tools/memstat_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/nearest_name.h"
#include "gemini/system/status_macros.h"
#include "tools/forecast_advice.h"
#include "tools/forecast_view.h"
#include "tools/gpu_table.h"
#include "trainer/checkpoint/hf_config.h"
#include "trainer/forecast/model_shape.h"

namespace gemini::tools {
namespace {

// Rates of drives on four lanes of PCIe 3, which most machines with such GPUs have.
constexpr double kNvmeReadBytesPerSecond = 3.0e9;
constexpr double kNvmeWriteBytesPerSecond = 2.5e9;
// AdamW moves 26 bytes a parameter in bf16 and 28 in fp32: two channels of DDR4, 35 of 51 GB/s.
constexpr double kUpdateElementsPerSecond = 1.25e9;
// On a GPU its memory is the bound: parameter, gradient and two moments are read, all but the
// gradient are written, in fp32.
constexpr double kUpdateBytesPerElement = 7 * sizeof(float);
// Between the request of a copy and its first byte, by cudaMemcpyAsync from pinned memory.
constexpr int64_t kCopyLatencyNs = 10'000;

absl::Status Wrong(const char* flag, absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", text, ": ", why));
}

absl::StatusOr<int64_t> Size(const char* flag, const std::string& text) {
  const absl::StatusOr<int64_t> size = ParseByteSize(text);
  if (!size.ok()) return Wrong(flag, text, size.status().message());
  return *size;
}

// "12GiB/s". Leaves `rate` alone when there is no text.
absl::Status Rate(const char* flag, const std::string& text, double& rate) {
  if (text.empty()) return absl::OkStatus();
  absl::string_view size_text = text;
  if (!absl::ConsumeSuffix(&size_text, "/s")) return Wrong(flag, text, "write it as 12GiB/s");
  const absl::StatusOr<int64_t> size = ParseByteSize(size_text);
  if (!size.ok()) return Wrong(flag, text, size.status().message());
  if (*size == 0) return Wrong(flag, text, "it must be above 0");
  rate = static_cast<double>(*size);
  return absl::OkStatus();
}

// Returns the table's entry, or all zeros for a GPU that the flags alone describe.
absl::StatusOr<GpuModel> GpuOf(const PlanFlags& flags) {
  if (!flags.gpu.empty()) {
    absl::StatusOr<GpuModel> gpu = FindGpu(flags.gpu);
    if (!gpu.ok()) return absl::InvalidArgumentError(gpu.status().message());
    return gpu;
  }
  if (flags.tflops > 0 && !flags.memory_bandwidth.empty() && !flags.pcie.empty() &&
      !flags.device.empty()) {
    return GpuModel();
  }
  return absl::InvalidArgumentError(
      "give --gpu NAME (--gpu list shows them), or all of --device, --tflops, --memory-bandwidth "
      "and "
      "--pcie");
}

absl::StatusOr<Job> JobOf(const PlanFlags& flags, ElementType precision,
                          const trainer::HfConfig& config) {
  const std::optional<MomentFormat> moments = MomentFormatOf(flags.moments);
  if (!moments) return Wrong("--moments", flags.moments, "it is fp32 or 8bit");
  if (flags.optimizer_tier != "host" && flags.optimizer_tier != "nvme") {
    return Wrong("--optimizer-tier", flags.optimizer_tier, "it is host or nvme");
  }
  Job job;
  job.shape = trainer::ShapeOf(config);
  job.round = {.train = true,
               .batch = flags.batch,
               .sequence = flags.sequence,
               .micro_batches = flags.accumulate,
               .recompute = flags.recompute,
               .element = precision,
               .moments = *moments,
               .states_on_nvme = flags.optimizer_tier == "nvme"};
  if (job.round.sequence == 0) {
    job.round.sequence = std::min(config.max_sequence(), kDefaultSequence);
  }
  if (job.round.sequence > config.max_sequence()) {
    return absl::InvalidArgumentError(absl::StrCat("--sequence ", job.round.sequence,
                                                   ": the model has ", config.max_sequence(),
                                                   " positions"));
  }
  if (!flags.chunk_size.empty()) {
    GEMINI_ASSIGN_OR_RETURN(job.chunk_bytes, Size("--chunk-size", flags.chunk_size));
    if (job.chunk_bytes < kPageBytes || job.chunk_bytes % kPageBytes != 0) {
      return Wrong("--chunk-size", flags.chunk_size, "it must be a multiple of 4KiB");
    }
  }
  return job;
}

}  // namespace

CLI::App* AddPlanCommand(CLI::App& app, PlanFlags& flags) {
  CLI::App* plan = app.add_subcommand(
      "plan", "What a model needs and takes on a machine, from its config.json alone");
  plan->add_option("--model", flags.model, "Directory with a config.json of GPT-2 or OPT");
  plan->add_option("--gpu", flags.gpu, "Its name, or 'list'");
  plan->add_option("--device", flags.device,
                   "GPU memory for Gemini; default: the GPU's, less the driver's");
  plan->add_option("--host", flags.host, "Host memory for Gemini, e.g. 64GiB");
  plan->add_option("--nvme", flags.nvme, "Room on NVMe, e.g. 1TiB; default: none");
  plan->add_option("--precision", flags.precision,
                   "fp32, bf16 or fp16; default: bf16 if the GPU has it");
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
  plan->add_flag("--json", flags.json, "JSON, in bytes and nanoseconds");
  return plan;
}

absl::StatusOr<ElementType> PrecisionOf(const PlanFlags& flags) {
  GEMINI_ASSIGN_OR_RETURN(const GpuModel gpu, GpuOf(flags));
  if (flags.precision.empty()) return gpu.has_bf16 ? ElementType::kBf16 : ElementType::kFp16;
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
  if (!flags.device.empty()) {
    GEMINI_ASSIGN_OR_RETURN(machine.bytes[Tier::kDevice], Size("--device", flags.device));
  }
  if (flags.host.empty()) {
    return absl::InvalidArgumentError("--host is missing: how much host memory, e.g. --host 64GiB");
  }
  GEMINI_ASSIGN_OR_RETURN(machine.bytes[Tier::kHost], Size("--host", flags.host));
  if (!flags.nvme.empty()) {
    GEMINI_ASSIGN_OR_RETURN(machine.bytes[Tier::kNvme], Size("--nvme", flags.nvme));
  }
  const double peak =
      precision == ElementType::kFp32 ? gpu.fp32_flops_per_second : gpu.half_flops_per_second;
  machine.compute.flops_per_second = kAchievedFlopsFraction * peak;
  if (flags.tflops < 0) return absl::InvalidArgumentError("--tflops must be above 0");
  if (flags.tflops > 0) machine.compute.flops_per_second = flags.tflops * 1e12;
  machine.compute.memory_bytes_per_second = kAchievedMemoryFraction * gpu.memory_bytes_per_second;
  GEMINI_RETURN_IF_ERROR(
      Rate("--memory-bandwidth", flags.memory_bandwidth, machine.compute.memory_bytes_per_second));
  machine.compute.kernel_ns = kKernelNs;

  CostModel& links = machine.links;
  links.host_to_device =
      kAchievedPcieFraction * PcieBytesPerSecond(gpu.pcie_generation, gpu.pcie_lanes);
  GEMINI_RETURN_IF_ERROR(Rate("--pcie", flags.pcie, links.host_to_device));
  links.device_to_host = links.host_to_device;
  links.nvme_read = kNvmeReadBytesPerSecond;
  GEMINI_RETURN_IF_ERROR(Rate("--nvme-read", flags.nvme_read, links.nvme_read));
  links.nvme_write = kNvmeWriteBytesPerSecond;
  GEMINI_RETURN_IF_ERROR(Rate("--nvme-write", flags.nvme_write, links.nvme_write));
  if (flags.update_rate < 0) return absl::InvalidArgumentError("--update-rate must be above 0");
  links.update_elements_per_second =
      flags.update_rate > 0 ? flags.update_rate : kUpdateElementsPerSecond;
  links.device_update_elements_per_second =
      machine.compute.memory_bytes_per_second / kUpdateBytesPerElement;
  links.copy_latency_ns = kCopyLatencyNs;
  return machine;
}

int RunPlan(const PlanFlags& flags) {
  if (flags.gpu == "list") {
    std::fputs(GpuListText().c_str(), stdout);
    return 0;
  }
  const auto refuse = [](const absl::Status& status, int exit_status) {
    std::fprintf(stderr, "memstat plan: %s\n", std::string(status.message()).c_str());
    return exit_status;
  };
  if (flags.model.empty()) {
    return refuse(absl::InvalidArgumentError("--model is missing: a directory with a config.json"),
                  2);
  }
  const absl::StatusOr<ElementType> precision = PrecisionOf(flags);
  if (!precision.ok()) return refuse(precision.status(), 2);
  const absl::StatusOr<Machine> machine = MachineOf(flags, *precision);
  if (!machine.ok()) return refuse(machine.status(), 2);
  const absl::StatusOr<trainer::HfConfig> config = trainer::ReadHfConfig(flags.model);
  if (!config.ok()) return refuse(config.status(), 1);
  const absl::StatusOr<Job> job = JobOf(flags, *precision, *config);
  if (!job.ok()) return refuse(job.status(), 2);
  const absl::StatusOr<Forecast> forecast = MakeForecast(*job, *machine);
  if (!forecast.ok()) return refuse(forecast.status(), 2);
  const absl::StatusOr<std::vector<Advice>> advice = Advise(*job, *machine, *forecast);
  if (!advice.ok()) return refuse(advice.status(), 1);
  const ForecastTitle title = {absl::StrCat(flags.model, " (", config->model_type(), ")"),
                               flags.gpu.empty() ? "a GPU of the rates given" : flags.gpu};
  const std::string text =
      flags.json ? ForecastJson(title, *job, *machine, *forecast, *advice).dump(2) + "\n"
                 : ForecastText(title, *job, *machine, *forecast, *advice);
  std::fputs(text.c_str(), stdout);
  return forecast->fit.ok() ? 0 : 1;
}

}  // namespace gemini::tools
