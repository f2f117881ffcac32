// SPDX-License-Identifier: Apache-2.0
#include "client/front/front_session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/front/module_walk.h"
#include "client/torch/device/gpu_device.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/descriptor_limit.h"
#include "gemini/system/host_memory.h"
#include "gemini/system/status_macros.h"
#include "server/tiers/gpu_device.h"

namespace gemini::client::front {
namespace {

std::atomic<bool> session_lives = false;

absl::Status NameOption(absl::string_view option, absl::string_view text,
                        const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("the session's option ", option, " is \"", text,
                                                  "\": ", status.message()));
}

absl::StatusOr<std::optional<int64_t>> ParseSize(absl::string_view option,
                                                 const std::string& text) {
  if (text.empty()) return std::nullopt;
  const absl::StatusOr<int64_t> size_bytes = ParseByteSize(text);
  if (!size_bytes.ok()) return NameOption(option, text, size_bytes.status());
  if (*size_bytes == 0) {
    return NameOption(option, text, absl::InvalidArgumentError("say more than 0, or leave it out"));
  }
  return *size_bytes;
}

absl::StatusOr<std::optional<int>> ParseDevice(absl::string_view text) {
  if (text.empty() || text == "cpu") return std::nullopt;
  int ordinal = 0;
  absl::string_view number = text;
  if (number == "cuda" || (absl::ConsumePrefix(&number, "cuda:") &&
                           absl::SimpleAtoi(number, &ordinal) && ordinal >= 0)) {
    return ordinal;
  }
  return NameOption("device", text, absl::InvalidArgumentError("it is cpu or cuda:N"));
}

// What of HOST the chunks of a model take.
absl::StatusOr<int64_t> HostBytesOf(const std::vector<hooks::ModuleTensor>& tensors,
                                    const StateFormat& format, int64_t chunk_bytes) {
  std::vector<TensorSpec> specs;
  for (const hooks::ModuleTensor& tensor : tensors) {
    specs.push_back(
        {tensor.names.front(), tensor.tensor.numel() * ElementBytes(tensor.element), tensor.group});
  }
  GEMINI_ASSIGN_OR_RETURN(const Layout layout, Layout::Pack(specs, chunk_bytes, format));
  int64_t chunks = SpareSlots(format);
  for (int64_t i = 0; i < layout.num_bundles(); ++i) {
    chunks +=
        layout.group(BundleId(i)) == TensorGroup::kTrainable ? TrainableKinds(format).size() : 1;
  }
  return chunks * chunk_bytes;
}

StateFormat FormatOf(const std::vector<hooks::ModuleTensor>& tensors,
                     const OptimizerSpec& optimizer) {
  for (const hooks::ModuleTensor& tensor : tensors) {
    if (tensor.group == TensorGroup::kTrainable) {
      return {tensor.element, optimizer.kind, optimizer.moments};
    }
  }
  return {};
}

}  // namespace

FrontSession::FrontSession(Settings settings) : settings_(std::move(settings)) {
  quick_errors_.emplace();
}

FrontSession::~FrontSession() { End(); }

absl::StatusOr<FrontSession::Settings> FrontSession::Parse(const SessionOptions& options) {
  Settings settings;
  GEMINI_ASSIGN_OR_RETURN(settings.device_bytes, ParseSize("device_memory", options.device_memory));
  GEMINI_ASSIGN_OR_RETURN(settings.host_bytes, ParseSize("host_memory", options.host_memory));
  GEMINI_ASSIGN_OR_RETURN(const std::optional<int64_t> chunk_bytes,
                          ParseSize("chunk_size", options.chunk_size));
  settings.chunk_bytes = chunk_bytes.value_or(0);
  if (settings.chunk_bytes % kPageBytes != 0) {
    return NameOption("chunk_size", options.chunk_size,
                      absl::InvalidArgumentError("it is a multiple of 4KiB"));
  }
  GEMINI_ASSIGN_OR_RETURN(settings.gpu, ParseDevice(options.device));
  if (!options.policy.empty()) {
    const absl::StatusOr<PolicyKind> kind = ParsePolicyKind(options.policy);
    if (!kind.ok()) return NameOption("policy", options.policy, kind.status());
    settings.policy.kind = *kind;
  }
  if (!options.nvme.empty()) {
    const size_t colon = options.nvme.rfind(':');
    const bool has_directory = colon != std::string::npos && colon > 0;
    if (has_directory != options.daemon.empty()) {
      return NameOption(
          "nvme", options.nvme,
          absl::InvalidArgumentError(options.daemon.empty() ? "write DIR:SIZE, as /mnt/nvme:100GiB"
                                                            : "of a daemon, write the size alone"));
    }
    if (has_directory) settings.nvme_directory = options.nvme.substr(0, colon);
    GEMINI_ASSIGN_OR_RETURN(const std::optional<int64_t> nvme_bytes,
                            ParseSize("nvme", options.nvme.substr(has_directory ? colon + 1 : 0)));
    settings.nvme_bytes = nvme_bytes.value_or(0);
  }
  settings.daemon = options.daemon;
  settings.name = options.name;
  if (settings.gpu.has_value() && !settings.daemon.empty() && !settings.device_bytes.has_value()) {
    return NameOption("device_memory", options.device_memory,
                      absl::InvalidArgumentError("say how much of the daemon's GPU the job may "
                                                 "have, as 8GiB"));
  }
  return settings;
}

absl::StatusOr<std::shared_ptr<FrontSession>> FrontSession::Make(const SessionOptions& options) {
  GEMINI_ASSIGN_OR_RETURN(Settings settings, Parse(options));
  if (session_lives.exchange(true)) {
    return absl::FailedPreconditionError(
        "a gemini::Session lives in this process already: give its optimizers the new model, or "
        "end it first");
  }
  return std::shared_ptr<FrontSession>(new FrontSession(std::move(settings)));
}

absl::Status FrontSession::Open(torch::nn::Module& module,
                                const std::vector<hooks::ModuleTensor>& tensors,
                                const OptimizerSpec& optimizer) {
  RaiseDescriptorLimit();
  const bool embeds = settings_.daemon.empty();
  hooks::TrainingOptions options;
  server::ServerOptions server;
  // A daemon allocates what it grants, whatever limits this process.
  GEMINI_ASSIGN_OR_RETURN(const HostMemory memory, embeds ? ReadHostMemory() : ReadMachineMemory());
  const StateFormat format = FormatOf(tensors, optimizer);
  if (settings_.device_bytes.has_value()) {
    options.device_memory = *settings_.device_bytes;
  } else {
    const int64_t chunk_bytes = settings_.chunk_bytes > 0
                                    ? settings_.chunk_bytes
                                    : hooks::ChooseChunkBytes(memory.available_bytes / 4, module);
    GEMINI_ASSIGN_OR_RETURN(const int64_t host_bytes, HostBytesOf(tensors, format, chunk_bytes));
    // On a GPU the embedded server says below what there is.
    options.device_memory = DefaultDeviceBytes(
        memory, settings_.gpu.has_value() ? 0 : settings_.host_bytes.value_or(host_bytes));
  }
  if (settings_.gpu.has_value()) {
    // What is free is asked for before a context takes some: it is a part of the budget.
    if (embeds) {
      GEMINI_RETURN_IF_ERROR(server::UseGpu(*settings_.gpu, settings_.device_bytes, server));
      options.device_memory = server.capacity_bytes[Tier::kDevice];
    }
    GEMINI_ASSIGN_OR_RETURN(options.device, hooks::OpenGpu(*settings_.gpu));
  } else if (!settings_.device_bytes.has_value() && !embeds) {
    options.device_floor = options.device_memory / 4;  // Other jobs may have the rest.
  }
  options.chunk_bytes = settings_.chunk_bytes;
  if (options.chunk_bytes == 0) {
    options.chunk_bytes =
        ChooseChunkBytes(WalkOf(tensors, format, options.device_memory), options.device_memory,
                         hooks::ChooseChunkBytes(options.device_memory, module), settings_.policy);
  }
  GEMINI_ASSIGN_OR_RETURN(const int64_t needed_bytes,
                          HostBytesOf(tensors, format, options.chunk_bytes));
  // HOST is taken space by space: what an embedded server may take costs nothing before.
  const int64_t left_bytes = memory.available_bytes - (settings_.gpu ? 0 : options.device_memory);
  options.host_memory =
      settings_.host_bytes.value_or(embeds ? std::max(left_bytes, needed_bytes) : needed_bytes);
  options.nvme_memory = settings_.nvme_bytes;
  options.label = settings_.name.empty() ? "gemini" : settings_.name.substr(0, 128);
  options.policy = settings_.policy;
  if (!embeds) {
    GEMINI_ASSIGN_OR_RETURN(
        training_, hooks::TrainingSession::Open(absl::string_view(settings_.daemon), options));
    return absl::OkStatus();
  }
  server.capacity_bytes[Tier::kDevice] = options.device_memory;
  server.capacity_bytes[Tier::kHost] = options.host_memory;
  if (options.nvme_memory > 0) {
    server.nvme_directories.push_back({settings_.nvme_directory, options.nvme_memory});
  }
  GEMINI_ASSIGN_OR_RETURN(server_, server::EmbeddedServer::Start(std::move(server)));
  GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, server_->Connect());
  GEMINI_ASSIGN_OR_RETURN(training_, hooks::TrainingSession::Open(std::move(socket), options));
  return absl::OkStatus();
}

absl::StatusOr<hooks::ManagedModel*> FrontSession::Manage(torch::nn::Module& module,
                                                          const OptimizerSpec& optimizer) {
  if (!is_open_) return absl::FailedPreconditionError("the session is closed");
  if (training_ == nullptr) {
    GEMINI_ASSIGN_OR_RETURN(const std::vector<hooks::ModuleTensor> tensors,
                            hooks::CollectModuleTensors(module, {}));
    GEMINI_RETURN_IF_ERROR(Open(module, tensors, optimizer));
  }
  hooks::ManageOptions options;
  ++num_models_;
  if (num_models_ > 1) options.space_name = absl::StrCat("model-", num_models_);
  absl::StatusOr<hooks::ManagedModel*> managed = training_->Manage(module, optimizer, options);
  // Another job of the daemon's may have the name.
  if (absl::IsAlreadyExists(managed.status()) && !settings_.daemon.empty()) {
    absl::StrAppend(&options.space_name, ".", ::getpid());
    managed = training_->Manage(module, optimizer, options);
  }
  return managed;
}

absl::Status FrontSession::Close() {
  if (!is_open_) return absl::OkStatus();
  absl::Status status;
  if (training_ != nullptr) {
    status = training_->Close();
    if (training_->is_open()) return status;
  }
  server_.reset();
  quick_errors_.reset();
  is_open_ = false;
  session_lives = false;
  return status;
}

void FrontSession::End() {
  Close().IgnoreError();
  if (!is_open_) return;
  // An operator on another thread still uses a tensor: the training session's end does not ask.
  is_open_ = false;
  training_.reset();
  server_.reset();
  quick_errors_.reset();
  session_lives = false;
}

void FrontSession::BeginPlain() {
  if (++num_plain_ == 1) training_->SetCounting(false);
}

void FrontSession::EndPlain() {
  if (--num_plain_ == 0) training_->SetCounting(true);
}

absl::Status FrontSession::status() const {
  return training_ == nullptr ? absl::OkStatus() : training_->status();
}

SessionStats FrontSession::stats() const {
  if (training_ == nullptr) return SessionStats{};
  const TrainingStats from = training_->stats();
  return {.device_budget_bytes = from.device_budget_bytes,
          .device_peak_bytes = from.device_peak_bytes,
          .host_bytes = from.host_bytes,
          .nvme_bytes = from.nvme_bytes,
          .chunk_bytes = training_->session().chunk_bytes(),
          .fetch_bytes = from.fetch_bytes,
          .evict_bytes = from.evict_bytes};
}

}  // namespace gemini::client::front
