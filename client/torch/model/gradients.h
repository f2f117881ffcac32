// SPDX-License-Identifier: Apache-2.0
// Moves each gradient into the grad chunk of its parameter as soon as it is complete: out of
// DEVICE, or to where the plan keeps the chunk there. p.grad becomes a managed tensor over that
// chunk, which operators read and write as before.
// Stages: TakeComplete returns the gradient in the chunk's element order, BeginLeaving writes it to
// the chunk, and ShowInChunk makes p.grad a tensor over the chunk. A sum over ranks belongs between
// the first two: until then nobody else has seen the gradient, and no square of it was summed.
// Squares: if DEVICE does that, those of a gradient that leaves it are summed before
// (client/torch/model/leaving_squares.h).
// Copies: several are in flight at a time (client/device/pending_write.h); each keeps its tensor
// until it is done. An operator that uses p.grad before that waits in its pin.
// When: Torch's post-accumulate hook calls Move after AccumulateGrad. The first gradient after
// zero_grad overwrites the chunk. Later ones (accumulation, re-entrant backward) find p.grad
// managed already, and Torch itself adds them, in place, through the operator hook.
// Thread: the hooks run on autograd's threads, or on several of the user's. One parameter is on one
// thread at a time; others, even in the same chunk, may be on other threads meanwhile. Each hook
// alone sets its own ModelTensor::grad_storage, with the lock, because others read it.
// Errors: an error in a hook is latched in the session; p.grad stays what it was.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/pending_write.h"
#include "client/kernels/device_kernels.h"
#include "client/session/session.h"
#include "client/torch/model/leaving_squares.h"
#include "client/torch/model/model_tensors.h"
#include "client/update/gradient_squares.h"
#include "gemini/system/mutex.h"

namespace gemini::client::hooks {

class Gradients {
 public:
  // Puts a hook on each trainable tensor; an existing hook runs before ours. `complete` is called
  // for each bundle when all its tensors have got their gradients since BeginStep. `squares` gets
  // the sums of squares that `kernels` compute before gradients leave. The arguments outlive this.
  Gradients(ModelTensors& tensors, StorageOwner& owner, Session& session, DeviceKernels& kernels,
            GradientSquares& squares, std::function<void(BundleId)> complete);
  // Removes the hooks, and waits for the copies in flight.
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Returns whether tensor `index` has a gradient. A gradient that is not managed (the user's own,
  // or of a backward with create_graph) is moved into its chunk first. UNIMPLEMENTED: the gradient
  // is sparse, or has another device, type or sizes than the parameter. RESOURCE_EXHAUSTED: no
  // memory for a copy. FAILED_PRECONDITION: the tensor was frozen at Manage.
  absl::StatusOr<bool> Collect(int64_t index);

  // Begins to move p.grad into the chunk, unless it is there already. The hook calls it. Errors: as
  // Collect, and of Residency::BeginWrite.
  absl::Status Move(int64_t index);
  // Waits for the oldest copy in flight and releases its tensor. Returns false if there is none.
  // Takes no lock while it waits. For an allocator that needs room.
  bool ReleaseOldest();
  // Waits for all copies in flight, including those that another thread waits for.
  void Finish();
  // Begins a step: gradients from now on belong to it.
  void BeginStep();
  Session& session() { return session_; }

 private:
  // Shared with the hooks, because a hook may outlive this: one that a user's hook wraps, or that
  // runs while a user's hook closes the session.
  struct Life {
    Gradients* gradients;
  };
  friend class MoveAfterAccumulation;
  struct Pending {
    int64_t index = 0;
    at::Tensor source;  // Freed after its copy: members end in reverse order.
    LeavingSquares squares;
    PendingWrite write;
  };

  RangeId GradientRange(int64_t index) const {
    return tensors_.ranges()[tensors_.tensors()[index].range].grad();
  }
  // Returns p.grad, or a copy of it in the element order of its chunk. Returns an undefined tensor
  // if the gradient is in the chunk already. UNIMPLEMENTED: as Collect.
  absl::StatusOr<at::Tensor> TakeComplete(int64_t index);
  // Begins to write the gradient to its chunk, and to sum its squares if that is done on DEVICE.
  absl::StatusOr<Pending> BeginLeaving(int64_t index, at::Tensor gradient);
  // Makes p.grad a managed tensor over the chunk.
  void ShowInChunk(int64_t index);
  // Returns whether no other tensor's gradient in its range's chunks can be read.
  bool IsAlone(int64_t index) const;
  absl::StatusOr<PendingWrite> BeginWrite(int64_t index, const at::Tensor& source);
  void Land(Pending pending);

  ModelTensors& tensors_;
  StorageOwner& owner_;
  Session& session_;
  DeviceKernels& kernels_;
  GradientSquares& squares_;
  const std::function<void(BundleId)> complete_;
  const std::shared_ptr<Life> life_ = std::make_shared<Life>(Life{this});

  // Whether DEVICE has had memory for the sums of squares in this step. If not, no more are begun
  // in the step, because an allocator that fails has first released all that it kept.
  std::atomic<bool> has_room_for_sums_ = true;
  mutable Mutex mutex_;
  std::condition_variable landed_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t landing_ ABSL_GUARDED_BY(mutex_) = 0;        // Taken from pending_, not done yet.
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mutex_);  // By tensor: since BeginStep.
};

}  // namespace gemini::client::hooks
