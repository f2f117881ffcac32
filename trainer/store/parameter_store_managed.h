// SPDX-License-Identifier: Apache-2.0
// Keeps parameters, gradients and moments in a session's chunks, under its budgets.
// Owner: one thread. The session owns the model and outlives this.
#pragma once
#include <memory>

#include "client/torch/model/managed_model.h"
#include "client/torch/model/training_session.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

class ManagedParameterStore final : public ParameterStore {
 public:
  // Makes a store of a model that was managed with that optimizer. Both outlive it. Parameters do
  // not decay whose name `is_exempt` says so. Errors: as ManagedModel::SetGroup.
  static absl::StatusOr<std::unique_ptr<ManagedParameterStore>> Make(
      client::hooks::TrainingSession& session, client::hooks::ManagedModel& model,
      const client::OptimizerSpec& optimizer,
      absl::FunctionRef<bool(absl::string_view name)> is_exempt);

  absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) override;
  OptimizerKind optimizer() const override { return optimizer_.kind; }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, Source source) override;
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override;
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  void BeginPhase(absl::string_view name) override;
  void EndPhase() override;
  absl::Status status() const override;
  bool GiveWay() override { return session_.GiveWay(); }
  void ForgetGradients() override { session_.ForgetGradients(); }
  client::TrainingStats usage() const override { return session_.stats(); }
  void ResetPeaks() override;

 private:
  ManagedParameterStore(client::hooks::TrainingSession& session, client::hooks::ManagedModel& model,
                        const client::OptimizerSpec& optimizer)
      : session_(session), model_(model), optimizer_(optimizer) {}

  client::hooks::TrainingSession& session_;
  client::hooks::ManagedModel& model_;
  const client::OptimizerSpec optimizer_;
  bool has_exempt_group_ = false;  // Group 1: parameters without weight decay.
};

}  // namespace gemini::trainer
