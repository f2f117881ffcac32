// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/gradients.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty_strided.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gemini/plan/plan.h"
#include "gemini/system/status_macros.h"
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

Gradients::Gradients(ModelTensors& tensors, StorageOwner& owner, Session& session,
                     DeviceKernels& kernels, GradientSquares& squares,
                     std::function<void(BundleId)> complete)
    : tensors_(tensors),
      owner_(owner),
      session_(session),
      kernels_(kernels),
      squares_(squares),
      complete_(std::move(complete)),
      arrived_(tensors.tensors().size()) {
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
  Finish();
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
  const ModelTensor& tensor = tensors_.tensors()[index];
  try {
    const at::NoGradGuard no_grad;
    GEMINI_ASSIGN_OR_RETURN(at::Tensor gradient, TakeComplete(index));
    if (!gradient.defined()) return absl::OkStatus();
    GEMINI_ASSIGN_OR_RETURN(Pending pending, BeginLeaving(index, std::move(gradient)));
    ShowInChunk(index);
    if (!pending.write.is_under_way()) return absl::OkStatus();  // It is in its chunk on DEVICE.
    MutexLock lock(mutex_);
    pending_.push_back(std::move(pending));
  } catch (const std::exception& error) {
    // Out of memory for the copy.
    return absl::ResourceExhaustedError(
        absl::StrCat("moving the gradient of ", tensor.info.name, ": ", error.what()));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Gradients::TakeComplete(int64_t index) {
  const ModelTensor& tensor = tensors_.tensors()[index];
  at::Tensor gradient = tensor.tensor.grad();
  if (gradient.layout() != at::kStrided || gradient.scalar_type() != tensor.tensor.scalar_type() ||
      gradient.device() != tensors_.device() ||
      gradient.sizes() != at::IntArrayRef(tensor.info.sizes)) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient of ", tensor.info.name,
                     " is sparse, or not a tensor of the parameter's device, type and sizes"));
  }
  const c10::StorageImpl* const storage = gradient.storage().unsafeGetStorageImpl();
  const bool has_strides = gradient.strides() == at::IntArrayRef(tensor.strides);
  if (tensor.grad_storage.get() == storage && storage != nullptr &&
      gradient.storage_offset() == 0 && has_strides) {
    return at::Tensor();
  }
  if (has_strides && ManagedStorage::Of(storage) == nullptr) return gradient;
  // The chunk has the parameter's element order; another managed tensor has no bytes to copy from.
  return at::empty_strided(tensor.info.sizes, tensor.strides, gradient.options()).copy_(gradient);
}

absl::StatusOr<Gradients::Pending> Gradients::BeginLeaving(int64_t index, at::Tensor gradient) {
  // Others than p.grad, the gradient here and the engine's own may write to it while it is copied.
  const bool shared = gradient.use_count() > 2 || gradient.storage().use_count() > 2;
  Pending pending;
  pending.index = index;
  pending.squares = LeavingSquares::Expect(tensors_, index, squares_);
  GEMINI_ASSIGN_OR_RETURN(pending.write, BeginWrite(index, gradient));
  // What others write meanwhile is not to be summed.
  if (pending.write.is_under_way() && !shared && has_room_for_sums_ &&
      !pending.squares.Begin(gradient, kernels_, session_)) {
    has_room_for_sums_ = false;
  }
  if (shared) tensors_.residency().AwaitWrite(GradientRange(index), pending.write);
  if (tensors_.phases() != nullptr) tensors_.phases()->GradientLeaves(tensors_.traced_index(index));
  pending.source = std::move(gradient);
  return pending;
}

void Gradients::ShowInChunk(int64_t index) {
  ModelTensor& tensor = tensors_.tensors()[index];
  // Somebody may still hold the gradient of an earlier step. Its bytes are gone: it must not show
  // the new ones under the old name.
  const bool is_held = tensor.grad_storage && tensor.grad_storage.use_count() > 1;
  if (is_held) {
    ManagedStorage::Of(tensor.grad_storage.get())
        ->Retire("the next backward pass overwrote it: clone() a gradient to keep it");
  }
  if (is_held || !tensor.grad_storage) {
    auto fresh = ManagedStorage::Make(
        {GradientRange(index), tensor.place.offset_bytes, tensor.size_bytes(),
         tensors_.traced_index(index), /*is_gradient=*/true},
        {absl::StrCat("gradient of ", tensor.info.name), false, true}, owner_, tensors_.device());
    // Hooks of other tensors in its chunk look at it.
    MutexLock lock(mutex_);
    tensor.grad_storage.swap(fresh);
  }
  at::Tensor managed = tensors_.MakeView(index, tensor.grad_storage);
  ManagedStorage::Of(tensor.grad_storage.get())
      ->set_version(managed.unsafeGetTensorImpl()->version_counter());
  tensor.tensor.mutable_grad() = std::move(managed);
}

absl::StatusOr<PendingWrite> Gradients::BeginWrite(int64_t index, const at::Tensor& source) {
  const auto is_full = [this] {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(pending_.size()) >= kMaxGradientsUnderWay ||
           (!pending_.empty() && pending_.front().write.Done() &&
            pending_.front().squares.copied().Done());
  };
  while (is_full()) ReleaseOldest();
  const ModelTensor& tensor = tensors_.tensors()[index];
  const auto* const bytes = static_cast<const std::byte*>(source.const_data_ptr());
  const auto begin = [&](int64_t offset_bytes, int64_t size_bytes) {
    return tensors_.residency().BeginWrite(GradientRange(index),
                                           tensor.place.offset_bytes + offset_bytes,
                                           bytes + offset_bytes, size_bytes, IsAlone(index));
  };
  absl::StatusOr<PendingWrite> write = begin(0, tensor.size_bytes());
  if (write.ok() || !absl::IsResourceExhausted(write.status())) return write;
  // The copies under way hold HOST slots, and one that spans chunks wants a slot for each: one by
  // one.
  while (ReleaseOldest()) {
  }
  for (int64_t i = 0; i < tensor.place.num_bundles; ++i) {
    for (const TensorPiece& piece :
         tensors_.pieces(BundleId(tensor.place.first_bundle.value() + i))) {
      if (piece.tensor != index) continue;
      GEMINI_ASSIGN_OR_RETURN(PendingWrite part,
                              begin(piece.tensor_offset_bytes, piece.size_bytes));
      tensors_.residency().AwaitWrite(GradientRange(index), part);
    }
  }
  return PendingWrite();
}

bool Gradients::IsAlone(int64_t index) const {
  MutexLock lock(mutex_);
  const BundleId first = tensors_.tensors()[index].place.first_bundle;
  return std::ranges::none_of(tensors_.pieces(first), [&](const TensorPiece& piece) {
    const ModelTensor& other = tensors_.tensors()[piece.tensor];
    // p.grad is one that holds it; somebody may have kept another.
    return piece.tensor != index && other.grad_storage && other.grad_storage.use_count() > 1;
  });
}

bool Gradients::ReleaseOldest() {
  Pending oldest;
  {
    MutexLock lock(mutex_);
    if (pending_.empty()) return false;
    oldest = std::move(pending_.front());
    pending_.pop_front();
    ++landing_;
  }
  Land(std::move(oldest));
  return true;
}

void Gradients::Land(Pending pending) {
  const absl::Cleanup landed = [this] {
    MutexLock lock(mutex_);
    --landing_;
    landed_.notify_all();
  };
  tensors_.residency().AwaitWrite(GradientRange(pending.index), pending.write);
  tensors_.residency().AwaitWrite(GradientRange(pending.index), pending.squares.copied());
  pending.squares.Keep(session().copies(), squares_);
  pending.source.reset();
  std::vector<BundleId> complete;
  const absl::Status copied = session().copies().status();
  session().Latch(copied);
  if (copied.ok()) {  // Else it may not have arrived.
    MutexLock lock(mutex_);
    arrived_[pending.index] = true;
    const TensorPlace& place = tensors_.tensors()[pending.index].place;
    for (int64_t i = 0; i < place.num_bundles; ++i) {
      const BundleId bundle(place.first_bundle.value() + i);
      const auto has_arrived = [this](const TensorPiece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                   mutex_) -> bool { return arrived_[piece.tensor]; };
      if (std::ranges::all_of(tensors_.pieces(bundle), has_arrived)) complete.push_back(bundle);
    }
  }
  for (const BundleId bundle : complete) complete_(bundle);
}

void Gradients::Finish() {
  while (ReleaseOldest()) {
  }
  MutexLock lock(mutex_);
  while (landing_ > 0) mutex_.WaitFor(landed_);
}

void Gradients::BeginStep() {
  has_room_for_sums_ = true;
  MutexLock lock(mutex_);
  arrived_.assign(arrived_.size(), false);
}

}  // namespace gemini::client::hooks
