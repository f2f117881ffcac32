// SPDX-License-Identifier: Apache-2.0
#include "client/front/front_model.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/util/StringUtil.h"
#include "client/front/optimizer_options.h"
#include "gemini/shm/intent_shm.h"
#include "gemini/system/status_macros.h"
#include "torch/nn/module.h"

namespace gemini::client::front {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// The group of each tensor.
absl::StatusOr<std::unordered_map<const c10::TensorImpl*, int64_t>> GroupOfTensors(
    const Groups& groups) {
  std::unordered_map<const c10::TensorImpl*, int64_t> group_of;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const at::Tensor& tensor : groups[i].params()) {
      const auto [found, is_new] =
          group_of.try_emplace(tensor.unsafeGetTensorImpl(), static_cast<int64_t>(i));
      if (is_new) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("a parameter of sizes ", c10::str(tensor.sizes()), " is in parameter group ",
                       found->second, " and again in group ", i, ": leave it in one"));
    }
  }
  return group_of;
}

absl::Status NoGroup(const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat(
      name,
      " requires a gradient and is in no parameter group: add it to one, or freeze it with "
      "requires_grad_(false) before"));
}

absl::Status NoParameter(int64_t group) {
  return absl::FailedPreconditionError(
      absl::StrCat("parameter group ", group,
                   " has a tensor that is no parameter of the module: pass the module that has "
                   "all parameters of the groups"));
}

}  // namespace

absl::Status CheckGroups(const torch::nn::Module& module, const Groups& groups) {
  if (groups.size() > kMaxParameterGroups) {
    return absl::InvalidArgumentError(absl::StrCat(groups.size(), " parameter groups: at most ",
                                                   kMaxParameterGroups, " are supported"));
  }
  GEMINI_ASSIGN_OR_RETURN(auto group_of, GroupOfTensors(groups));
  for (const auto& item : module.named_parameters()) {
    if (group_of.erase(item.value().unsafeGetTensorImpl()) > 0) continue;
    if (item.value().requires_grad()) return NoGroup(item.key());
  }
  if (!group_of.empty()) return NoParameter(group_of.begin()->second);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<FrontModel>> FrontModel::Make(std::shared_ptr<FrontSession> session,
                                                             torch::nn::Module& module,
                                                             const OptimizerSpec& optimizer) {
  GEMINI_ASSIGN_OR_RETURN(hooks::ManagedModel * managed, session->Manage(module, optimizer));
  auto model =
      std::shared_ptr<FrontModel>(new FrontModel(std::move(session), managed, optimizer.kind));
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const auto& item : module.named_parameters()) {
    by_name[item.key()] = item.value();
    model->parameters_.insert(item.value().unsafeGetTensorImpl());
  }
  for (const auto& item : module.named_buffers()) by_name[item.key()] = item.value();
  std::unordered_map<const c10::TensorImpl*, bool> is_managed;
  for (const hooks::ManagedTensorInfo& info : managed->tensors()) {
    const at::Tensor& tensor = by_name[info.name];
    is_managed[tensor.unsafeGetTensorImpl()] = true;
    model->tensors_.push_back({info.name, tensor, info.group});
  }
  const auto add_plain = [&](const auto& items, TensorGroup group) {
    for (const auto& item : items) {
      if (!item.value().defined() || is_managed.contains(item.value().unsafeGetTensorImpl())) {
        continue;
      }
      model->plain_tensors_.push_back({item.key(), item.value(), group});
    }
  };
  add_plain(module.named_parameters(), TensorGroup::kFrozen);
  add_plain(module.named_buffers(), TensorGroup::kBuffer);
  return model;
}

absl::StatusOr<hooks::ManagedModel*> FrontModel::managed() const {
  if (session_->is_open()) return managed_;
  return absl::FailedPreconditionError("the session is closed");
}

absl::Status FrontModel::AssignGroups(const Groups& groups) {
  GEMINI_ASSIGN_OR_RETURN(hooks::ManagedModel* const managed, this->managed());
  GEMINI_ASSIGN_OR_RETURN(const auto group_of, GroupOfTensors(groups));
  for (const auto& [tensor, group] : group_of) {
    if (!parameters_.contains(tensor)) return NoParameter(group);
  }
  for (const NamedTensor& tensor : tensors_) {
    const auto found = group_of.find(tensor.tensor.unsafeGetTensorImpl());
    if (found != group_of.end()) {
      GEMINI_RETURN_IF_ERROR(managed->SetGroup(tensor.name, found->second));
    } else if (tensor.group == TensorGroup::kTrainable) {
      return NoGroup(tensor.name);
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::front
