// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/parameter_store_managed.h"

#include "gemini/system/status_macros.h"

namespace gemini::trainer {

absl::StatusOr<std::unique_ptr<ManagedParameterStore>> ManagedParameterStore::Make(
    client::hooks::TrainingSession& session, client::hooks::ManagedModel& model,
    const client::OptimizerSpec& optimizer,
    absl::FunctionRef<bool(absl::string_view name)> is_exempt) {
  std::unique_ptr<ManagedParameterStore> store(
      new ManagedParameterStore(session, model, optimizer));
  for (const client::hooks::ManagedTensorInfo& tensor : model.tensors()) {
    if (tensor.group != TensorGroup::kTrainable || !is_exempt(tensor.name)) continue;
    GEMINI_RETURN_IF_ERROR(model.SetGroup(tensor.name, 1));
    store->has_exempt_group_ = true;
  }
  return store;
}

absl::StatusOr<client::StepResult> ManagedParameterStore::Update(
    const client::StepOptions& options) {
  if (!has_exempt_group_) return model_.Step(options);
  client::StepOptions step = options;
  step.groups = {optimizer_, optimizer_};
  for (client::OptimizerSpec& group : step.groups) {
    group.learning_rate = options.learning_rate;
  }
  step.groups[1].weight_decay = 0;
  step.learning_rate = -1;
  return model_.Step(step);
}

absl::Status ManagedParameterStore::ReadRange(absl::string_view name, ChunkKind kind,
                                              ByteRange range, Sink sink) {
  return model_.ReadRange(name, kind, range, sink);
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

void ManagedParameterStore::ResetPeaks() { session_.ResetPeaks(); }

}  // namespace gemini::trainer
