// SPDX-License-Identifier: Apache-2.0
// Moves each gradient into the grad chunk of its parameter as soon as it is complete: out of
// DEVICE, or to where the plan keeps the chunk there. p.grad becomes a managed tensor over that
// chunk, which operators read and write as before.
// Squares: those of a gradient that leaves are summed before, where DEVICE does that
//          (client/torch/model/leaving_squares.h).
// Copies: several are under way at a time (client/device/pending_write.h); each keeps its tensor
//         until it is done. An operator that uses p.grad before that waits in its pin.
// When:   after AccumulateGrad, by Torch's post-accumulate hook. The first gradient after zero_grad
//         overwrites the chunk; later ones (accumulation, re-entrant backward) find p.grad managed
//         already and are added by Torch itself, in place, through the operator hook.
// Thread: the hooks run on autograd's threads, or on several of the user's: one parameter on one
//         thread at a time, others, in the same chunk too, meanwhile. Each sets its own
//         ModelTensor::grad_storage alone, with the lock, as others read it.
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
  // Puts a hook on each trainable tensor; one that is there already is run before ours. `complete`
  // is told each bundle all of whose tensors have got their gradients since BeginStep. `squares`
  // gets what `kernels` sum of gradients before they leave. The arguments outlive this.
  Gradients(ModelTensors& tensors, StorageOwner& owner, Session& session, DeviceKernels& kernels,
            GradientSquares& squares, std::function<void(BundleId)> complete);
  // Takes the hooks away, and waits for the copies under way.
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Whether the parameter has a gradient. One that is not managed (the user's own, or of a backward
  // with create_graph) is moved into its chunk first when `index` is trainable.
  // UNIMPLEMENTED: sparse, or not of the parameter's type. FAILED_PRECONDITION: the tensor was
  // frozen at Manage.
  absl::StatusOr<bool> Collect(int64_t index);

  // The work of the hook: begins to move p.grad into the chunk unless it is there.
  absl::Status Move(int64_t index);
  // Waits for the oldest copy under way and lets go of its tensor. False: there is none. Takes no
  // lock while it waits; for an allocator that needs room.
  bool ReleaseOldest();
  // Waits for all copies under way, those that another thread waits for too.
  void Finish();
  // The gradients that come from now on are another step's.
  void BeginStep();
  Session& session() { return session_; }

 private:
  // Shared with the hooks: one that a user's hook wraps, or that runs while a user's hook closes
  // the session, outlives this.
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
  // Whether nobody can read another tensor's gradient in its range's chunks.
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

  // Since the last step DEVICE had memory for them: an allocator that has none has given up all
  // that it kept.
  std::atomic<bool> has_room_for_sums_ = true;
  mutable Mutex mutex_;
  std::condition_variable landed_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t landing_ ABSL_GUARDED_BY(mutex_) = 0;        // Taken from pending_, not done yet.
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mutex_);  // By tensor: since BeginStep.
};

}  // namespace gemini::client::hooks
