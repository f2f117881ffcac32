// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/training_session.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/budget_follower.h"
#include "client/torch/device/cpu_device.h"
#include "client/torch/device/vector_math.h"
#include "client/torch/hook/operator_hook.h"
#include "client/torch/model/model_tensors.h"
#include "client/torch/model/module_tensors.h"
#include "client/torch/model/session_model.h"
#include "client/torch/model/space_model.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kMinChunkBytes = 64 * kKiB;
constexpr int64_t kMaxChunkBytes = 16 * kMiB;

absl::StatusOr<SessionOptions> ToSessionOptions(const TrainingOptions& options,
                                                SessionDevice& device) {
  SessionOptions session;
  session.want_bytes[Tier::kDevice] = options.device_memory;
  session.want_bytes[Tier::kHost] = options.host_memory;
  session.want_bytes[Tier::kNvme] = options.nvme_memory;
  // A smaller grant would surface as a failure in the middle of a run.
  session.floor_bytes = session.want_bytes;
  if (options.device_floor > 0) {
    session.floor_bytes[Tier::kDevice] = std::min(options.device_floor, options.device_memory);
  }
  // That of DEVICE becomes what a round needs once the server has seen one.
  session.takes_epochs = true;
  session.chunk_bytes =
      options.chunk_bytes > 0 ? options.chunk_bytes : ChooseChunkBytes(options.device_memory);
  session.label = options.label;
  session.device_bandwidth = options.device_bandwidth;
  session.policy = options.policy;
  session.update_threads = options.update_threads;
  GEMINI_RETURN_IF_ERROR(device.Configure(session));
  return session;
}

std::shared_ptr<SessionDevice> DeviceOf(const TrainingOptions& options) {
  return options.device != nullptr ? options.device : MakeCpuDevice();
}

// On a GPU, a tensor that was used on the CPU has gradients, or graphs, that stay there.
absl::Status CheckMayMove(const ModuleTensor& tensor, c10::Device device) {
  if (device.is_cpu() || tensor.tensor.is_meta()) return absl::OkStatus();
  if (!tensor.tensor.grad().defined() &&
      torch::autograd::impl::try_get_grad_accumulator(tensor.tensor) == nullptr) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      tensor.names.front(), " has a gradient on the CPU, or a graph that is to give it one: ",
      "manage the module for ", device.str(), " before its first backward"));
}

absl::Status CheckNoSession() {
  if (OperatorHook::Active() == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a training session is open in this process: close it, or Manage the model in it");
}

}  // namespace

int64_t ChooseChunkBytes(int64_t device_memory) {
  constexpr int64_t kMinChunks = 32;
  const auto fitting =
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(device_memory, 1)) / kMinChunks);
  return std::clamp(static_cast<int64_t>(fitting), kMinChunkBytes, kMaxChunkBytes);
}

int64_t ChooseChunkBytes(int64_t device_memory, const torch::nn::Module& module) {
  int64_t module_bytes = 0;
  for (const at::Tensor& tensor : module.parameters()) {
    module_bytes += tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  }
  constexpr int64_t kMinChunks = 4;
  const auto fitting =
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(module_bytes, 1)) / kMinChunks);
  return std::min(ChooseChunkBytes(device_memory),
                  std::max(kMinChunkBytes, static_cast<int64_t>(fitting)));
}

struct TrainingSession::State {
  std::shared_ptr<SessionDevice> device;
  std::shared_ptr<Session> session;  // Shared with the allocator's blocks.
  std::unique_ptr<PlanSource> plans;
  std::unique_ptr<BudgetFollower> budget_follower;
  std::unique_ptr<PhaseTracker> phases;
  std::unique_ptr<OperatorHook> hook;
  std::vector<std::unique_ptr<SessionModel>> models;
  TierMap<int64_t> spaces_bytes;  // Given to spaces, of HOST and NVME.
  TrainingStats stats_at_close;
  bool is_open = true;
};

TrainingSession::TrainingSession(std::unique_ptr<State> state) : state_(std::move(state)) {}

TrainingSession::~TrainingSession() { Shut().IgnoreError(); }

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Open(
    UniqueFd socket, const TrainingOptions& options) {
  GEMINI_RETURN_IF_ERROR(CheckNoSession());
  std::shared_ptr<SessionDevice> device = DeviceOf(options);
  GEMINI_ASSIGN_OR_RETURN(const SessionOptions session, ToSessionOptions(options, *device));
  return Start(Session::Open(std::move(socket), session), std::move(device));
}

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Open(
    absl::string_view socket_path, const TrainingOptions& options) {
  GEMINI_RETURN_IF_ERROR(CheckNoSession());
  std::shared_ptr<SessionDevice> device = DeviceOf(options);
  GEMINI_ASSIGN_OR_RETURN(const SessionOptions session, ToSessionOptions(options, *device));
  return Start(Session::Open(socket_path, session), std::move(device));
}

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Start(
    absl::StatusOr<std::unique_ptr<Session>> session, std::shared_ptr<SessionDevice> device) {
  if (!session.ok()) return session.status();
  ResolveVectorMath();  // A model has the same bits with a session and without.
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  state->session = std::move(*session);
  Session& opened = *state->session;
  if (opened.policy().kind != PolicyKind::kOnline) state->plans = opened.MakePlanSource();
  state->phases = std::make_unique<PhaseTracker>(opened.residency(), opened.device_budget(),
                                                 state->plans.get(), opened.timeline());
  state->budget_follower = std::make_unique<BudgetFollower>(opened);
  // A plan that an operator begins reckons with what is on DEVICE, and a commit takes it off.
  state->phases->set_between_operators(
      [follower = state->budget_follower.get(), models = &state->models] {
        follower->BetweenOperators();
        for (const auto& model : *models) {
          if (model->open() != nullptr) model->open()->FinishWrites();
        }
      });
  GEMINI_ASSIGN_OR_RETURN(state->hook,
                          OperatorHook::Install(opened, state->device, state->phases.get()));
  state->session->residency().set_pending_release([models = &state->models] {
    return std::ranges::any_of(
        *models, [](const auto& model) { return model->open()->ReleaseOldestGradient(); });
  });
  state->device->Begin(state->session, *state->budget_follower);
  return std::unique_ptr<TrainingSession>(new TrainingSession(std::move(state)));
}

absl::StatusOr<ManagedModel*> TrainingSession::Manage(torch::nn::Module& module,
                                                      const OptimizerSpec& optimizer,
                                                      const ManageOptions& options) {
  if (!state_->is_open) return absl::FailedPreconditionError("the session is closed");
  GEMINI_RETURN_IF_ERROR(status());
  Session& session = *state_->session;
  const int64_t chunk_bytes = session.chunk_bytes();
  try {
    GEMINI_ASSIGN_OR_RETURN(std::vector<ModuleTensor> tensors,
                            CollectModuleTensors(module, options.first_use_order));
    const c10::Device device = state_->device->device();
    std::vector<TensorSpec> specs;
    StateFormat format;
    for (const ModuleTensor& tensor : tensors) {
      GEMINI_RETURN_IF_ERROR(CheckMayMove(tensor, device));
      specs.push_back({tensor.names.front(), tensor.tensor.numel() * ElementBytes(tensor.element),
                       tensor.group});
      if (tensor.group == TensorGroup::kTrainable) {
        format = {tensor.element, optimizer.kind, optimizer.moments};
      }
    }
    GEMINI_ASSIGN_OR_RETURN(const Layout layout, Layout::Pack(specs, chunk_bytes, format));

    SpaceOptions space;
    space.name = options.space_name;
    space.num_bundles = layout.num_bundles();
    space.num_tensors = static_cast<int64_t>(tensors.size());
    space.format = format;
    space.states_on_nvme = options.states_on_nvme;
    const int64_t spare = SpareSlots(format, options.states_on_nvme);
    int64_t chunks = 0, at_home_on_nvme = 0;
    for (int64_t i = 0; i < layout.num_bundles(); ++i) {
      // A frozen tensor or buffer has one chunk.
      const bool is_trained = layout.group(BundleId(i)) == TensorGroup::kTrainable;
      chunks += is_trained ? TrainableKinds(format).size() : 1;
      if (is_trained && options.states_on_nvme) at_home_on_nvme += NumStateChunks(format);
    }
    const auto free_slots = [&](Tier tier, int64_t asked_bytes) {
      const int64_t left = session.granted_bytes()[tier] - state_->spaces_bytes[tier];
      return (asked_bytes > 0 ? std::min(asked_bytes, left) : left) / chunk_bytes;
    };
    space.host_slots =
        std::min(chunks - at_home_on_nvme + spare, free_slots(Tier::kHost, options.host_memory));
    const int64_t spilled = std::max<int64_t>(0, chunks + spare - space.host_slots);
    space.nvme_slots = std::min(spilled, free_slots(Tier::kNvme, options.nvme_memory));
    if (space.host_slots < spare || space.nvme_slots < spilled) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "model ", options.space_name, " needs ", FormatByteSize((chunks + spare) * chunk_bytes),
          " of HOST and NVME, of it ", FormatByteSize(spare * chunk_bytes), " in HOST; HOST has ",
          FormatByteSize(free_slots(Tier::kHost, options.host_memory) * chunk_bytes),
          " left and NVME ",
          FormatByteSize(free_slots(Tier::kNvme, options.nvme_memory) * chunk_bytes),
          ": raise the host memory or the NVME memory"));
    }
    GEMINI_ASSIGN_OR_RETURN(ChunkStore * store, session.OpenSpace(space));
    state_->spaces_bytes[Tier::kHost] += space.host_slots * chunk_bytes;
    state_->spaces_bytes[Tier::kNvme] += space.nvme_slots * chunk_bytes;

    auto table = ModelTensors::Make(std::move(tensors), layout, *store, session.residency(),
                                    optimizer.decay_min_dimensions, device, state_->phases.get());
    GEMINI_ASSIGN_OR_RETURN(
        std::unique_ptr<SpaceModel> model,
        SpaceModel::Make(std::move(table), optimizer, kOpenChunks, session, *state_->hook));
    state_->models.push_back(std::make_unique<SessionModel>(std::move(model)));
    // Masters and moments only where they are updated there.
    const bool has_states = UpdatesInPlace(format) && !options.states_on_nvme;
    state_->device->AddChunks((has_states ? chunks : 2 * layout.num_bundles()) * chunk_bytes);
    // What is not managed is the module's own, beside managed tensors.
    std::vector<at::Tensor> others = module.buffers();
    for (const at::Tensor& parameter : module.parameters()) others.push_back(parameter);
    for (at::Tensor& other : others) {
      if (device.is_cpu() || !other.defined() || other.device() == device) continue;
      if (ManagedStorage::Of(other.unsafeGetTensorImpl()) == nullptr) {
        other.set_data(other.to(device));
      }
    }
    return state_->models.back().get();
  } catch (const std::exception& error) {  // Torch's, on a tensor of a kind not thought of.
    return absl::InternalError(absl::StrCat("managing the module: ", error.what()));
  }
}

absl::Status TrainingSession::status() const { return state_->session->status(); }

TrainingStats TrainingSession::stats() const {
  if (!state_->is_open) return state_->stats_at_close;
  const DeviceBudget& budget = state_->session->device_budget();
  const ResidencyStats residency = state_->session->residency().stats();
  const HookStats hook = state_->hook->stats();
  TrainingStats stats;
  // On a GPU the budget is for chunks alone.
  const int64_t apart_peak_bytes = state_->device->non_model_peak_bytes();
  stats.device_budget_bytes = budget.budget_bytes() + state_->session->device().apart_bytes();
  stats.device_peak_bytes = budget.peak_bytes() + apart_peak_bytes;
  stats.non_model_peak_bytes = budget.non_model_peak_bytes() + apart_peak_bytes;
  stats.pinned_peak_bytes = residency.pinned_peak_bytes;
  stats.host_bytes = state_->spaces_bytes[Tier::kHost];
  stats.nvme_bytes = state_->spaces_bytes[Tier::kNvme];
  if (const HostPins* const pins = state_->session->host_pins(); pins != nullptr) {
    stats.registered_host_bytes = pins->pinned_bytes();
    stats.registration_error = std::string(pins->status().message());
  }
  stats.fetch_bytes = residency.fetch_bytes;
  stats.evict_bytes = residency.evict_bytes;
  stats.stall_seconds = static_cast<double>(residency.stall_ns) * 1e-9;
  for (int i = 0; i < kNumStallCauses; ++i) {
    stats.stall_seconds_by_cause[i] = static_cast<double>(residency.stall_by_cause_ns[i]) * 1e-9;
  }
  stats.phases = state_->phases->stats();
  stats.requests_given_up = state_->session->requests_given_up();
  stats.operators = hook.operators;
  stats.operators_with_chunks = hook.operators_with_chunks;
  return stats;
}

void TrainingSession::ResetPeaks() {
  state_->session->device_budget().ResetPeaks();
  state_->device->ResetPeaks();
}

c10::Device TrainingSession::device() const { return state_->device->device(); }

bool TrainingSession::GiveWay() {
  if (!state_->is_open) return false;
  // Gradients that are on their way out hold memory of operators.
  for (const auto& model : state_->models) {
    while (model->open()->ReleaseOldestGradient()) {
    }
  }
  return state_->device->GiveWay();
}

void TrainingSession::ForgetGradients() {
  if (!state_->is_open) return;
  for (const auto& model : state_->models) model->open()->ForgetGradients();
}

void TrainingSession::SetCounting(bool counts) {
  if (state_->is_open) state_->device->SetCounting(counts);
}

Session& TrainingSession::session() { return *state_->session; }

PhaseTracker& TrainingSession::phases() { return *state_->phases; }

bool TrainingSession::is_open() const { return state_->is_open; }

absl::Status TrainingSession::Close() {
  if (!state_->is_open) return absl::OkStatus();
  for (const auto& model : state_->models) {
    GEMINI_RETURN_IF_ERROR(model->open()->CheckUnpinned("the session stays open"));
  }
  return Shut();
}

absl::Status TrainingSession::Shut() {
  if (!state_->is_open) return absl::OkStatus();
  absl::Status status;
  for (const auto& model : state_->models) status.Update(model->open()->FinishUpdates());
  state_->stats_at_close = stats();
  state_->is_open = false;
  state_->session->residency().set_pending_release(nullptr);
  for (const auto& model : state_->models) model->Close();
  state_->hook.reset();
  state_->device->End();
  state_->phases.reset();  // Copies that it has under way land before the memory goes.
  state_->plans.reset();
  status.Update(state_->session->Close());
  return status;
}

}  // namespace gemini::client::hooks
