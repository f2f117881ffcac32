// SPDX-License-Identifier: Apache-2.0
// Implements the ManagedModel that a session returns. It forwards calls to the model in the
// session's space while the session is open, and returns FAILED_PRECONDITION afterwards. So a loop
// may keep a pointer to it beyond Close.
// Owner: the TrainingSession.
// Thread: as ManagedModel.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/space_model.h"

namespace gemini::client::hooks {

class SessionModel final : public ManagedModel {
 public:
  explicit SessionModel(std::unique_ptr<SpaceModel> open)
      : open_(std::move(open)), tensors_(open_->tensors()) {}

  // Returns null once closed.
  SpaceModel* open() const { return open_.get(); }
  // Ends the model. step() and tensors() keep their values.
  void Close();

  absl::StatusOr<StepResult> Step(const StepOptions& options) override;
  int64_t step() const override { return open_ != nullptr ? open_->step() : last_step_; }
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override;
  absl::Status SetStep(int64_t step) override;
  absl::Status SetTensorStep(absl::string_view name, int64_t step) override;
  absl::Status SetGroup(absl::string_view name, int64_t group) override;
  const std::vector<ManagedTensorInfo>& tensors() const override { return tensors_; }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         ByteSink sink) override;
  absl::Status Write(absl::string_view name, ChunkKind kind, ByteSource source) override;
  absl::StatusOr<ScopedFetch> Fetch(const at::Tensor& tensor, FetchAccess access) override;

 private:
  absl::Status CheckOpen() const;

  std::unique_ptr<SpaceModel> open_;
  const std::vector<ManagedTensorInfo> tensors_;
  int64_t last_step_ = 0;  // step() when it was closed.
};

}  // namespace gemini::client::hooks
