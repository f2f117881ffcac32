// SPDX-License-Identifier: Apache-2.0
// Implements ManagedModel over one space of a session.
// Step: it checks everything that can fail, then records the intent and returns. The bundles are
// updated on the thread of an UpdateQueue, with the session's update_team(), while the next forward
// runs, and pins wait for their versions.
// Owner: the TrainingSession.
// Thread: as ManagedModel; any operator's thread calls Prepare.
#pragma once
#include <memory>
#include <vector>

#include "client/session/session.h"
#include "client/torch/hook/operator_hook.h"
#include "client/torch/model/gradients.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/model_tensors.h"
#include "client/torch/model/parameter_edits.h"
#include "client/torch/model/tensor_writer.h"
#include "client/update/gradient_squares.h"
#include "client/update/update_queue.h"
#include "gemini/shm/intent_shm.h"

namespace gemini::client::hooks {

class SpaceModel final : public ManagedModel, public StorageOwner {
 public:
  // Moves the tensors into chunks of the space that `tensors` uses. Session and hook outlive this.
  // On an error the module is lost.
  static absl::StatusOr<std::unique_ptr<SpaceModel>> Make(std::unique_ptr<ModelTensors> tensors,
                                                          const OptimizerSpec& optimizer,
                                                          int64_t max_open_chunks, Session& session,
                                                          OperatorHook& hook);
  // Finishes pending updates and retires all storages.
  ~SpaceModel() override;

  absl::StatusOr<StepResult> Step(const StepOptions& options) override;
  int64_t step() const override { return step_; }
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override;
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  absl::Status SetGroup(absl::string_view name, int64_t group) override;
  const std::vector<ManagedTensorInfo>& tensors() const override { return infos_; }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         ByteSink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, ByteSource source) override;
  absl::StatusOr<ScopedFetch> Fetch(const at::Tensor& tensor, FetchAccess access) override;

  // Blocks until no bundle awaits a commit. Errors: of the update, which was tried once more.
  absl::Status FinishUpdates() { return updates_->Finish(); }
  // Commits what Write has left open, for what begins next is an operator. What cannot be committed
  // stays open: who needs it returns the error.
  void FinishWrites() {
    if (writer_.has_open()) [[unlikely]]
      writer_.Flush().IgnoreError();
  }
  // For tests that delay the updates.
  UpdateQueue& updates() { return *updates_; }
  // As Gradients::ReleaseOldest.
  bool ReleaseOldestGradient() { return gradients_->ReleaseOldest(); }
  // Waits for gradients that are on their way: those from now on are of a new step.
  void ForgetGradients() {
    gradients_->Finish();
    gradients_->BeginStep();
  }

  absl::Status Prepare(ManagedStorage& storage) override;
  absl::Status PrepareWrite(ManagedStorage& storage) override {
    return edits_.Prepare(storage.range());
  }
  absl::Status NoteWrite(ManagedStorage& storage) override { return edits_.Note(storage.range()); }
  // As ModelTensors::CheckUnpinned.
  absl::Status CheckUnpinned(absl::string_view outcome) const {
    return tensors_->CheckUnpinned(outcome);
  }

 private:
  SpaceModel(std::unique_ptr<ModelTensors> tensors, const OptimizerSpec& optimizer,
             int64_t max_open_chunks, Session& session, OperatorHook& hook);
  // Finds the tensor, and checks that its group has values of the kind and, unless these are
  // moments, that it is unchanged since Manage.
  absl::StatusOr<int64_t> FindKind(absl::string_view name, ChunkKind kind) const;
  // Returns the hyper-parameters of each group in a step with these options. INVALID_ARGUMENT:
  // there are too few or too many, or one is out of its range (the message names it).
  absl::StatusOr<std::vector<OptimizerSpec>> GroupsForStep(const StepOptions& options) const;
  // Does what a step needs before its gradients are collected: writes and updates come to their
  // end. Returns the hyper-parameters of each group, or why there can be no step.
  absl::StatusOr<std::vector<OptimizerSpec>> PrepareStep(const StepOptions& options);
  // Does the part of Step between the last operator and the recorded intent; on an error nothing
  // was changed, but other processes may have taken the step (client/update/step_exchange.h). The
  // step is the same as before if no process had a gradient, or it was skipped.
  absl::StatusOr<StepResult> TakeStep(const StepOptions& options, StepExchange& exchange,
                                      const std::vector<OptimizerSpec>& groups);
  // Waits until the tensor's bundles are at step().
  absl::Status AwaitTensor(int64_t index);

  Session& session_;
  OperatorHook& hook_;
  const OptimizerSpec optimizer_;
  std::unique_ptr<ModelTensors> tensors_;
  std::vector<ManagedTensorInfo> infos_;
  TensorWriter writer_;
  ParameterEdits edits_;
  GradientSquares squares_;
  Intent intent_;  // The intent of the pending updates; the update thread reads it meanwhile.
  int64_t step_ = 0;
  // In this order, because the hooks of gradients_ give work to updates_, which uses all above.
  std::unique_ptr<UpdateQueue> updates_;
  std::unique_ptr<Gradients> gradients_;  // After MoveIntoChunks.
};

}  // namespace gemini::client::hooks
