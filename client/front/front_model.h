// SPDX-License-Identifier: Apache-2.0
// Connects a module with its managed model: names its tensors, and puts parameters into groups.
// Thread: one at a time. Owner: shared by the optimizer and whoever saves or loads it.
#pragma once
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/front/front_session.h"
#include "client/torch/model/managed_model.h"
#include "gemini/layout.h"
#include "gemini/optimizer_kind.h"
#include "torch/optim/optimizer.h"

namespace gemini::client::front {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  TensorGroup group = TensorGroup::kTrainable;
};

// FAILED_PRECONDITION: a group has a tensor that is no parameter of the module, two groups have the
// same one, or one that requires a gradient is in none (names it). INVALID_ARGUMENT: there are more
// than kMaxParameterGroups (gemini/shm/intent_shm.h).
absl::Status CheckGroups(const torch::nn::Module& module,
                         const std::vector<torch::optim::OptimizerParamGroup>& groups);

class FrontModel {
 public:
  // Moves the module into the session. Errors: as FrontSession::Manage.
  static absl::StatusOr<std::shared_ptr<FrontModel>> Make(std::shared_ptr<FrontSession> session,
                                                          torch::nn::Module& module,
                                                          const OptimizerSpec& optimizer);

  OptimizerKind kind() const { return kind_; }
  FrontSession& session() const { return *session_; }
  // FAILED_PRECONDITION: the session is closed.
  absl::StatusOr<hooks::ManagedModel*> managed() const;
  int64_t num_steps() const { return session_->is_open() ? managed_->step() : 0; }

  // The managed tensors: parameters, then buffers.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  // What stays with the module: its tensors that are empty, or of no floating-point type.
  const std::vector<NamedTensor>& plain_tensors() const { return plain_tensors_; }

  // Puts each parameter into the group that has it. As CheckGroups.
  absl::Status AssignGroups(const std::vector<torch::optim::OptimizerParamGroup>& groups);

 private:
  FrontModel(std::shared_ptr<FrontSession> session, hooks::ManagedModel* managed,
             OptimizerKind kind)
      : session_(std::move(session)), managed_(managed), kind_(kind) {}

  const std::shared_ptr<FrontSession> session_;
  hooks::ManagedModel* const managed_;
  const OptimizerKind kind_;
  std::unordered_set<const c10::TensorImpl*> parameters_;  // All of the module.
  std::vector<NamedTensor> tensors_;
  std::vector<NamedTensor> plain_tensors_;
};

}  // namespace gemini::client::front
