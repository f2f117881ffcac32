// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/session_model.h"

#include "client/update/step_exchange.h"
#include "gemini/system/status_macros.h"

namespace gemini::client::hooks {

void SessionModel::Close() {
  if (open_ == nullptr) return;
  last_step_ = open_->step();
  open_.reset();
}

absl::Status SessionModel::CheckOpen() const {
  if (open_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the session is closed, and its models with it: Read what is to be kept before Close");
}

absl::StatusOr<StepResult> SessionModel::Step(const StepOptions& options) {
  if (absl::Status open = CheckOpen(); !open.ok()) return RefuseStep(options.exchange, open);
  return open_->Step(options);
}

absl::StatusOr<int64_t> SessionModel::TensorStep(absl::string_view name) const {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->TensorStep(name);
}

absl::Status SessionModel::SetStep(int64_t step) {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->SetStep(step);
}

absl::Status SessionModel::SetTensorStep(absl::string_view name, int64_t step) {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->SetTensorStep(name, step);
}

absl::Status SessionModel::SetGroup(absl::string_view name, int64_t group) {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->SetGroup(name, group);
}

absl::Status SessionModel::ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                                     ByteSink sink) {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->ReadRange(name, kind, range, sink);
}

absl::Status SessionModel::Write(absl::string_view name, ChunkKind kind, ByteSource source) {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->Write(name, kind, source);
}

absl::StatusOr<ScopedFetch> SessionModel::Fetch(const at::Tensor& tensor, FetchAccess access) {
  GEMINI_RETURN_IF_ERROR(CheckOpen());
  return open_->Fetch(tensor, access);
}

}  // namespace gemini::client::hooks
