// SPDX-License-Identifier: Apache-2.0
#include "client/torch/gradients.h"

#include <exception>
#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty_strided.h"
#include "absl/strings/str_cat.h"
#include "gemini/status_macros.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

namespace gemini::client::hooks {

using torch::autograd::PostAccumulateGradHook;

class MoveAfterAccumulation final : public PostAccumulateGradHook {
 public:
  MoveAfterAccumulation(std::shared_ptr<Gradients::Life> life, int64_t index,
                        std::unique_ptr<PostAccumulateGradHook> before)
      : life_(std::move(life)), index_(index), before_(std::move(before)) {}

  void operator()(const at::Tensor& parameter) override {
    // This may be gone when the user's hook returns.
    const std::shared_ptr<Gradients::Life> life = life_;
    const int64_t index = index_;
    if (before_) (*before_)(parameter);
    if (life->gradients == nullptr) return;
    // With create_graph the gradient is part of a graph: Step takes it when that is done.
    if (!parameter.grad().defined() || parameter.grad().requires_grad()) return;
    if (absl::Status status = life->gradients->Move(index); !status.ok()) {
      life->gradients->session().Latch(status);
    }
  }
  std::unique_ptr<PostAccumulateGradHook> TakeBefore() { return std::move(before_); }

 private:
  const std::shared_ptr<Gradients::Life> life_;
  const int64_t index_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

Gradients::Gradients(ModelTensors& tensors, StorageOwner& owner, Session& session)
    : tensors_(tensors), owner_(owner), session_(session) {
  for (size_t i = 0; i < tensors_.tensors().size(); ++i) {
    const ModelTensor& tensor = tensors_.tensors()[i];
    if (tensor.info.group != TensorGroup::kTrainable) continue;
    std::unique_ptr<PostAccumulateGradHook>& slot =
        torch::autograd::impl::post_acc_grad_hooks(tensor.tensor);
    auto hook =
        std::make_unique<MoveAfterAccumulation>(life_, static_cast<int64_t>(i), std::move(slot));
    torch::autograd::impl::set_post_acc_grad_hooks(tensor.tensor, std::move(hook));
  }
}

Gradients::~Gradients() {
  life_->gradients = nullptr;
  for (const ModelTensor& tensor : tensors_.tensors()) {
    if (tensor.info.group != TensorGroup::kTrainable) continue;
    std::unique_ptr<PostAccumulateGradHook>& slot =
        torch::autograd::impl::post_acc_grad_hooks(tensor.tensor);
    if (auto* hook = dynamic_cast<MoveAfterAccumulation*>(slot.get())) {
      torch::autograd::impl::set_post_acc_grad_hooks(tensor.tensor, hook->TakeBefore());
    }
  }
}

absl::StatusOr<bool> Gradients::Collect(int64_t index) {
  ModelTensor& tensor = tensors_.tensors()[index];
  if (!tensor.tensor.grad().defined()) return false;
  if (tensor.info.group != TensorGroup::kTrainable) {
    return absl::FailedPreconditionError(
        absl::StrCat(tensor.info.name,
                     " has a gradient, but it did not require one when the module "
                     "was managed: set requires_grad before Manage"));
  }
  GEMINI_RETURN_IF_ERROR(Move(index));
  return true;
}

absl::Status Gradients::Move(int64_t index) {
  ModelTensor& tensor = tensors_.tensors()[index];
  at::Tensor gradient = tensor.tensor.grad();
  if (gradient.layout() != at::kStrided || gradient.scalar_type() != at::kFloat ||
      !gradient.is_cpu() || gradient.sizes() != at::IntArrayRef(tensor.info.sizes)) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient of ", tensor.info.name,
                     " is sparse, or not an fp32 tensor on the CPU of the parameter's sizes"));
  }
  const c10::StorageImpl* const storage = gradient.storage().unsafeGetStorageImpl();
  if (tensor.grad_storage.get() == storage && storage != nullptr &&
      gradient.storage_offset() == 0 && gradient.strides() == at::IntArrayRef(tensor.strides)) {
    return absl::OkStatus();
  }
  try {
    const at::NoGradGuard no_grad;
    const bool is_managed = ManagedStorage::Of(storage) != nullptr;
    if (is_managed || gradient.strides() != at::IntArrayRef(tensor.strides)) {
      // The chunk has the parameter's element order; another managed tensor has no bytes to copy from.
      gradient = at::empty_strided(tensor.info.sizes, tensor.strides, at::kFloat).copy_(gradient);
    }
    const ModelRange& range = tensors_.ranges()[tensor.range];
    GEMINI_RETURN_IF_ERROR(tensors_.residency().Write(
        range.grad, tensor.place.offset_bytes, gradient.const_data_ptr(), tensor.size_bytes()));
    // Somebody may still hold the gradient of an earlier step. Its bytes are gone: it must not show
    // the new ones under the old name.
    if (tensor.grad_storage && tensor.grad_storage.use_count() > 1) {
      ManagedStorage::Of(tensor.grad_storage.get())
          ->Retire("the next backward pass overwrote it: clone() a gradient to keep it");
      tensor.grad_storage.reset();
    }
    if (!tensor.grad_storage) {
      tensor.grad_storage = ManagedStorage::Make(
          {range.grad, tensor.place.offset_bytes, tensor.size_bytes()},
          {absl::StrCat("gradient of ", tensor.info.name), false, true}, owner_);
    }
    at::Tensor managed = tensors_.MakeView(index, tensor.grad_storage);
    ManagedStorage::Of(tensor.grad_storage.get())
        ->set_version(managed.unsafeGetTensorImpl()->version_counter());
    tensor.tensor.mutable_grad() = std::move(managed);
  } catch (const std::exception& error) {
    // Out of memory for the copy: the allocator has latched why.
    return absl::ResourceExhaustedError(
        absl::StrCat("moving the gradient of ", tensor.info.name, ": ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::hooks
