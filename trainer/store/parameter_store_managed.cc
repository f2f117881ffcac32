// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/parameter_store_managed.h"

#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<std::unique_ptr<ManagedParameterStore>> ManagedParameterStore::Make(
    client::hooks::TrainingSession& session, client::hooks::ManagedModel& model,
    const client::hooks::OptimizerSpec& optimizer, const DecayExemptions& no_decay) {
  std::unique_ptr<ManagedParameterStore> store(
      new ManagedParameterStore(session, model, optimizer));
  for (const client::hooks::ManagedTensorInfo& tensor : model.tensors()) {
    if (tensor.group != TensorGroup::kTrainable || !no_decay.Exempts(tensor.name)) continue;
    GEMINI_RETURN_IF_ERROR(model.SetGroup(tensor.name, 1));
    store->has_exempt_group_ = true;
  }
  return store;
}

absl::StatusOr<UpdateResult> ManagedParameterStore::Update(const UpdateOptions& options) {
  client::hooks::StepOptions step = {.max_grad_norm = options.max_grad_norm,
                                     .loss_scale = options.loss_scale,
                                     .skip_non_finite = options.skip_non_finite};
  if (has_exempt_group_) {
    step.groups = {optimizer_, optimizer_};
    for (client::hooks::OptimizerSpec& group : step.groups) {
      group.learning_rate = options.learning_rate;
    }
    step.groups[1].weight_decay = 0;
  } else {
    step.learning_rate = options.learning_rate;
  }
  GEMINI_ASSIGN_OR_RETURN(const client::hooks::StepResult result, model_.Step(step));
  return UpdateResult{.grad_norm = result.grad_norm,
                      .clip_coefficient = result.clip_coefficient,
                      .skipped = result.skipped};
}

absl::Status ManagedParameterStore::Read(absl::string_view name, ChunkKind kind, Sink sink) {
  return model_.Read(name, kind, sink);
}

absl::Status ManagedParameterStore::Write(absl::string_view name, ChunkKind kind, Source source) {
  return model_.Write(name, kind, source);
}

absl::StatusOr<int64_t> ManagedParameterStore::TensorStep(absl::string_view name) const {
  return model_.TensorStep(name);
}

absl::Status ManagedParameterStore::SetStep(int64_t step) { return model_.SetStep(step); }

absl::Status ManagedParameterStore::SetTensorStep(absl::string_view name, int64_t step) {
  return model_.SetTensorStep(name, step);
}

void ManagedParameterStore::BeginPhase(absl::string_view name) {
  session_.phases().BeginPhase(name);
}

void ManagedParameterStore::EndPhase() { session_.phases().EndPhase(); }

absl::Status ManagedParameterStore::status() const { return session_.status(); }

StoreUsage ManagedParameterStore::usage() const {
  const client::hooks::TrainingStats stats = session_.stats();
  StoreUsage usage = {.device_budget_bytes = stats.device_budget_bytes,
                      .device_peak_bytes = stats.device_peak_bytes,
                      .non_model_peak_bytes = stats.non_model_peak_bytes,
                      .pinned_peak_bytes = stats.pinned_peak_bytes,
                      .host_bytes = stats.host_bytes,
                      .registered_host_bytes = stats.pinned_host_bytes,
                      .registration_error = std::string(session_.host_pin_status().message()),
                      .nvme_bytes = stats.nvme_bytes,
                      .fetch_bytes = stats.fetch_bytes,
                      .evict_bytes = stats.evict_bytes,
                      .stall_seconds = stats.stall_seconds,
                      .requests_given_up = stats.requests_given_up,
                      .planned_rounds = stats.phases.planned_rounds,
                      .divergences = stats.phases.divergences};
  for (size_t i = 0; i < usage.stall_seconds_by_cause.size(); ++i) {
    usage.stall_seconds_by_cause[i] = static_cast<double>(stats.stall_by_cause_ns[i]) * 1e-9;
  }
  return usage;
}

void ManagedParameterStore::ResetPeaks() { session_.ResetPeaks(); }

}  // namespace gemini::trainer
