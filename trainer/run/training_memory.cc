// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/training_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/Context.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/torch/model/element_types.h"
#include "client/torch/model/tensor_copy.h"
#include "gemini/byte_size.h"
#include "gemini/policy_options.h"
#include "gemini/system/descriptor_limit.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/gpu_device.h"
#include "trainer/config/decay_exemptions.h"
#include "trainer/families/vocabulary_cut.h"
#include "trainer/forecast/chunk_choice.h"
#include "trainer/forecast/compute_rate.h"
#include "trainer/forecast/memory_plan.h"
#include "trainer/forecast/shard_plan.h"
#include "trainer/models/activation_store_managed.h"
#include "trainer/parallel/parameter_store_ranks.h"
#include "trainer/run/run_log.h"
#include "trainer/store/parameter_store_managed.h"

namespace gemini::trainer {
namespace {

std::string SpaceName(const RunConfig& config) {
  if (!config.space.empty()) return config.space;
  std::string name = config.output.substr(config.output.rfind('/') + 1).substr(0, 128);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return name.empty() ? "model" : name;
}

struct Plans {
  MemoryPlan memory;
  std::vector<Trace> rounds;  // As ChunkChoice has them.
};

std::vector<TensorSpec> TensorsOf(const std::vector<ParameterShape>& parameters,
                                  const RunConfig& config) {
  std::vector<TensorSpec> tensors;
  for (const ParameterShape& parameter : parameters) {
    tensors.push_back({parameter.name, parameter.num_elements() * ElementBytes(config.element()),
                       TensorGroup::kTrainable});
  }
  return tensors;
}

// `gpu`: null where the CPU computes.
absl::StatusOr<Plans> PlanFor(const RunConfig& config, const client::hooks::SessionDevice* gpu,
                              const ModelSpec& spec, const StagedModel& model,
                              const std::vector<ParameterShape>& parameters, int64_t available) {
  ChunkChoiceInputs inputs = {.config = config, .model = spec, .links = {}};
  if (gpu == nullptr) {
    inputs.compute = MeasureComputeRate();
  } else if (config.chunk_size == kAutoBytes) {
    const absl::StatusOr<GpuRates> rates =
        MeasureGpuRates(gpu->device(), client::hooks::ScalarTypeOf(config.element()));
    if (rates.ok()) {
      inputs.compute = rates->compute;
      inputs.links = rates->costs;
    } else {
      inputs.compute = rates.status();
    }
  }
  if (gpu != nullptr) inputs.context_bytes = gpu->context_bytes();
  inputs.device_bytes = config.device_memory;
  inputs.most_chunk_bytes = client::hooks::ChooseChunkBytes(inputs.device_bytes, model);
  ChunkChoice choice = ChooseChunkSize(inputs);
  LogInfo(choice.reason);
  GEMINI_ASSIGN_OR_RETURN(
      MemoryPlan plan,
      PlanMemory(config, TensorsOf(parameters, config),
                 BoundaryActivationsOf(config, spec.num_blocks,
                                       spec.ElementsBetweenBlocks(config.sequence)),
                 choice.chunk_bytes, available));
  // Which boundary activations leave DEVICE is not in the prediction.
  if (plan.host_activation_bytes == 0) {
    GEMINI_RETURN_IF_ERROR(CheckDeviceFloor(choice, inputs.device_bytes));
    // The prediction knows the model's tensors, but not each temporary.
    plan.device_floor_bytes = choice.device_floor_bytes + choice.device_floor_bytes / 2;
  }
  // What measuring and foretelling took goes back to the system before HOST is asked for.
  ::malloc_trim(0);
  return Plans{std::move(plan), std::move(choice.rounds)};
}

// A GPU computes the same bits each time only where it is told to: attention would not, with a
// warning alone. Before its first operator.
void MakeGpuOperatorsRepeatable() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Nothing here reads what it has not written, but a rehearsal (operator_room.h), whose numbers
  // are dropped.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

// Opens the session as `plan` says, with a server of its own unless a daemon is named, moves the
// model into it, and makes its store.
absl::Status OpenSession(const RunConfig& config, TrainingDevice device, const MemoryPlan& plan,
                         StagedModel& model, client::hooks::ManageOptions manage,
                         const std::string& label,
                         absl::FunctionRef<bool(absl::string_view name)> is_exempt,
                         TrainingMemory& memory) {
  RaiseDescriptorLimit();
  client::hooks::TrainingOptions options;
  options.device = std::move(device.gpu);
  options.device_memory = plan.bytes[Tier::kDevice];
  options.device_floor = plan.device_floor_bytes;
  options.host_memory = plan.bytes[Tier::kHost];
  options.nvme_memory = plan.bytes[Tier::kNvme];
  options.chunk_bytes = plan.chunk_bytes;
  options.label = absl::StrCat("gemini-train ", label).substr(0, 128);
  options.device_bandwidth = config.device_bandwidth;
  options.update_threads = static_cast<int>(config.update_threads);
  GEMINI_ASSIGN_OR_RETURN(options.policy.kind, ParsePolicyKind(config.policy));
  options.policy.param_fraction = config.param_fraction;
  options.policy.optimizer_fraction = config.optimizer_fraction;
  LogInfo(absl::StrCat("asks for DEVICE ", FormatByteSize(options.device_memory), ", HOST ",
                       FormatByteSize(options.host_memory), ", NVME ",
                       FormatByteSize(options.nvme_memory), ", in chunks of ",
                       FormatByteSize(options.chunk_bytes)));
  if (config.daemon.empty()) {
    device.server.capacity_bytes = plan.bytes;
    device.server.nvme_directories = config.nvme;
    GEMINI_ASSIGN_OR_RETURN(memory.server, server::EmbeddedServer::Start(std::move(device.server)));
    GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, memory.server->Connect());
    GEMINI_ASSIGN_OR_RETURN(memory.session,
                            client::hooks::TrainingSession::Open(std::move(socket), options));
  } else {
    GEMINI_ASSIGN_OR_RETURN(memory.session, client::hooks::TrainingSession::Open(
                                                absl::string_view(config.daemon), options));
  }
  if (const int64_t got_bytes = memory.session->session().granted_bytes()[Tier::kDevice];
      got_bytes < options.device_memory) {
    LogInfo(absl::StrCat("got DEVICE ", FormatByteSize(got_bytes),
                         ": other jobs hold the rest, which comes as they end"));
  }
  manage.states_on_nvme = config.states_on_nvme();
  const client::OptimizerSpec optimizer = MakeOptimizer(config);
  GEMINI_ASSIGN_OR_RETURN(client::hooks::ManagedModel * managed,
                          memory.session->Manage(model, optimizer, manage));
  GEMINI_ASSIGN_OR_RETURN(
      memory.store, ManagedParameterStore::Make(*memory.session, *managed, optimizer, is_exempt));
  return absl::OkStatus();
}

}  // namespace

client::OptimizerSpec MakeOptimizer(const RunConfig& config) {
  return {.kind = config.optimizer_kind(),
          .learning_rate = config.lr,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .epsilon = config.epsilon,
          .weight_decay = config.weight_decay,
          .momentum = config.momentum,
          .trust_coefficient = config.trust_coefficient,
          .moments = config.format().moments,
          .rounding_seed = config.rounding_seed()};
}

namespace {

// Returns what a server of this rank's own may have of its GPU; nothing: what is free now.
absl::StatusOr<std::optional<int64_t>> DeviceCapacity(const RunConfig& config, const RankJob& job) {
  if (config.device_memory != kAutoBytes) return std::optional(config.device_memory);
  if (!job.gpu.has_value()) return std::optional<int64_t>();
  // Others may have taken some since.
  if (job.gpu->free_bytes.has_value()) return *job.gpu->free_bytes / 16 * 15 / job.gpu->num_ranks;
  if (job.gpu->num_ranks == 1) return std::optional<int64_t>();
  return absl::UnavailableError(absl::StrCat("what is free on ", config.device, ", which ",
                                             job.gpu->num_ranks,
                                             " ranks have, is not known: pass --device-memory"));
}

}  // namespace

absl::StatusOr<TrainingDevice> OpenTrainingDevice(RunConfig& config, const RankJob& job) {
  TrainingDevice device;
  if (!config.gpu().has_value()) return device;
  MakeGpuOperatorsRepeatable();
  // What is free, before a context takes some: it is a part of the budget.
  if (config.daemon.empty()) {
    GEMINI_ASSIGN_OR_RETURN(const std::optional<int64_t> capacity, DeviceCapacity(config, job));
    GEMINI_RETURN_IF_ERROR(server::UseGpu(*config.gpu(), capacity, device.server));
    config.device_memory = device.server.capacity_bytes[Tier::kDevice];
  }
  device.gpu = job.device;
  if (device.gpu == nullptr) {
    GEMINI_ASSIGN_OR_RETURN(device.gpu, client::hooks::OpenGpu(*config.gpu()));
  }
  return device;
}

namespace {

// Leaves room in HOST for activations that leave DEVICE.
absl::Status LeaveRoomForActivations(const MemoryPlan& plan, client::hooks::ManageOptions& manage) {
  if (plan.host_activation_bytes == 0) return absl::OkStatus();
  manage.host_memory = plan.bytes[Tier::kHost] - plan.host_activation_bytes;
  if (manage.host_memory > 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the activations between blocks need ", FormatByteSize(plan.host_activation_bytes),
      " of HOST beside the model, and HOST has ", FormatByteSize(plan.bytes[Tier::kHost]),
      ": raise --host-memory or --device-memory, or lower --batch or --accumulate"));
}

// Makes the store of activations, if some leave DEVICE, in a space beside the model's.
absl::Status OpenActivations(const MemoryPlan& plan, const std::string& space_name,
                             TrainingMemory& memory) {
  if (plan.host_activation_bytes == 0) return absl::OkStatus();
  client::hooks::OffloadOptions offload;
  offload.space_name = absl::StrCat(space_name.substr(0, 116), ".activations");
  offload.keep_bytes = plan.kept_activation_bytes;
  offload.host_bytes = plan.host_activation_bytes;
  GEMINI_ASSIGN_OR_RETURN(
      auto offloaded, client::hooks::OffloadedTensors::Open(memory.session->session(), offload));
  memory.activations = std::make_unique<ManagedActivations>(std::move(offloaded));
  return absl::OkStatus();
}

}  // namespace

absl::Status OpenManaged(const RunConfig& config, TrainingDevice device, const ModelSpec& spec,
                         StagedModel& model, const std::vector<ParameterShape>& parameters,
                         int64_t available, TrainingMemory& memory) {
  GEMINI_ASSIGN_OR_RETURN(Plans plans,
                          PlanFor(config, device.gpu.get(), spec, model, parameters, available));
  const MemoryPlan& plan = plans.memory;
  client::hooks::ManageOptions manage;
  manage.space_name = SpaceName(config);
  GEMINI_RETURN_IF_ERROR(LeaveRoomForActivations(plan, manage));
  GEMINI_ASSIGN_OR_RETURN(const DecayExemptions no_decay, DecayExemptions::Parse(config.no_decay));
  GEMINI_RETURN_IF_ERROR(OpenSession(
      config, std::move(device), plan, model, manage, manage.space_name,
      [&](absl::string_view name) { return no_decay.Exempts(NameInFiles(name)); }, memory));
  // Also behind --resume: the first step of a run is like those before.
  for (Trace& round : plans.rounds) memory.session->phases().Foretell(std::move(round));
  memory.fetch_expert = [&session = memory.session->session()](
                            const torch::Tensor& parameter,
                            const torch::Tensor& to) -> absl::StatusOr<std::function<void()>> {
    GEMINI_ASSIGN_OR_RETURN(const client::hooks::PendingCopy copy,
                            client::hooks::BeginCopy(session, parameter, to));
    return [&session, copy] { client::hooks::AwaitCopy(session, copy); };
  };
  return OpenActivations(plan, manage.space_name, memory);
}

absl::StatusOr<MemoryPlan> PlanForShards(const RunConfig& config, const GatheredModel& model,
                                         const RankLayout& layout, int64_t rank, int64_t available,
                                         int64_t context_bytes) {
  GEMINI_ASSIGN_OR_RETURN(ShardPlan plan,
                          PlanShards(config, model, layout, rank, available, context_bytes));
  if (!plan.floor.ok()) {
    LogInfo(absl::StrCat("what operators need of DEVICE is not known before the first step: ",
                         plan.floor.message()));
  }
  return std::move(plan.memory);
}

absl::Status OpenShards(const RunConfig& config, TrainingDevice device, GatheredModel& model,
                        Communicator& communicator, const RankLayout& layout, int64_t available,
                        TrainingMemory& memory) {
  GEMINI_ASSIGN_OR_RETURN(const MemoryPlan plan,
                          PlanForShards(config, model, layout, communicator.rank(), available,
                                        device.gpu != nullptr ? device.gpu->context_bytes() : 0));
  client::hooks::ManageOptions manage;
  // No longer than 116, so that the name of its activations' space has the rank, too.
  manage.space_name = absl::StrCat(SpaceName(config).substr(0, 104), ".rank", communicator.rank());
  GEMINI_RETURN_IF_ERROR(LeaveRoomForActivations(plan, manage));
  GEMINI_ASSIGN_OR_RETURN(const DecayExemptions no_decay, DecayExemptions::Parse(config.no_decay));
  std::string label = manage.space_name;
  if (layout.ranks_of_row() > 1 || layout.pipeline_ranks() > 1) {
    absl::StrAppend(&label, " (", layout.CoordinatesOf(communicator.rank()), ")");
  }
  GEMINI_RETURN_IF_ERROR(OpenSession(
      config, std::move(device), plan, model, manage, label,
      [&](absl::string_view name) { return no_decay.Exempts(NameOfWhole(name)); }, memory));
  // What is whole beside the pieces gets its values from them, or from gradients.
  for (const auto& parameter : model.named_parameters()) {
    if (NameOfWhole(parameter.key()) != parameter.key()) continue;  // A piece.
    GEMINI_RETURN_IF_ERROR(memory.store->Write(parameter.key(), ChunkKind::kParam,
                                               [](int64_t, absl::Span<std::byte> bytes) {
                                                 std::ranges::fill(bytes, std::byte{0});
                                                 return absl::OkStatus();
                                               }));
  }
  memory.store =
      std::make_unique<RanksParameterStore>(std::move(memory.store), model, communicator, layout);
  return OpenActivations(plan, manage.space_name, memory);
}

}  // namespace gemini::trainer
