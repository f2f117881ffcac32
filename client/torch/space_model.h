// SPDX-License-Identifier: Apache-2.0
// A ManagedModel over one space of a session.
// Owner:  the TrainingSession. Thread: as ManagedModel; Prepare is called by any operator's thread.
#pragma once
#include <memory>
#include <vector>

#include "client/session.h"
#include "client/torch/gradients.h"
#include "client/torch/managed_model.h"
#include "client/torch/model_tensors.h"
#include "client/torch/operator_hook.h"
#include "client/torch/tensor_writer.h"

namespace gemini::client::hooks {

class SpaceModel final : public ManagedModel, public StorageOwner {
 public:
  // Moves the tensors into chunks of the space below `tensors`. Session and hook outlive this.
  // On an error the module is lost.
  static absl::StatusOr<std::unique_ptr<SpaceModel>> Make(std::unique_ptr<ModelTensors> tensors,
                                                          const OptimizerSpec& optimizer,
                                                          int64_t max_open_chunks, Session& session,
                                                          OperatorHook& hook);
  // Retires all storages.
  ~SpaceModel() override;

  absl::StatusOr<StepResult> Step(const StepOptions& options) override;
  int64_t step() const override { return step_; }
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override;
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  const std::vector<ManagedTensorInfo>& tensors() const override { return infos_; }
  absl::Status Read(absl::string_view name, ChunkKind kind, ByteSink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, ByteSource source) override;
  absl::StatusOr<ScopedFetch> Fetch(const at::Tensor& tensor, FetchAccess access) override;

  absl::Status Prepare(ManagedStorage& storage) override;
  // As ModelTensors::CheckUnpinned.
  absl::Status CheckUnpinned(absl::string_view outcome) const {
    return tensors_->CheckUnpinned(outcome);
  }

 private:
  SpaceModel(std::unique_ptr<ModelTensors> tensors, const OptimizerSpec& optimizer,
             int64_t max_open_chunks, Session& session, OperatorHook& hook);
  // Finds the tensor and checks that its group has the kind.
  absl::StatusOr<int64_t> FindKind(absl::string_view name, ChunkKind kind) const;
  absl::Status CheckNotTorn() const;

  Session& session_;
  OperatorHook& hook_;
  const OptimizerSpec optimizer_;
  std::unique_ptr<ModelTensors> tensors_;
  std::vector<ManagedTensorInfo> infos_;
  TensorWriter writer_;
  std::unique_ptr<Gradients> gradients_;  // After MoveIntoChunks.
  int64_t step_ = 0;
  // A step failed after its first commit: some bundles are at step_ + 1.
  bool update_torn_ = false;
};

}  // namespace gemini::client::hooks
