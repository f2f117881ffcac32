// SPDX-License-Identifier: Apache-2.0
// Moves each gradient out of DEVICE as soon as it is complete, into the grad chunk of its parameter;
// p.grad becomes a managed tensor over that chunk, which operators read and write as before.
// When:   after AccumulateGrad, by Torch's post-accumulate hook. The first gradient after zero_grad
//         overwrites the chunk; later ones (accumulation, re-entrant backward) find p.grad managed
//         already and are added by Torch itself, in place, through the operator hook.
// Thread: the hooks run on autograd's threads, one parameter on one thread at a time.
// Errors: an error in a hook is latched in the session; p.grad stays what it was.
#pragma once
#include <cstdint>
#include <memory>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "client/session.h"
#include "client/torch/model_tensors.h"

namespace gemini::client::hooks {

class Gradients {
 public:
  // Puts a hook on each trainable tensor; one that is there already is run before ours. The arguments
  // outlive this.
  Gradients(ModelTensors& tensors, StorageOwner& owner, Session& session);
  // Takes the hooks away.
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Whether the parameter has a gradient. One that is not managed (the user's own, or of a backward
  // with create_graph) is moved into its chunk first when `index` is trainable.
  // UNIMPLEMENTED: sparse, or not fp32. FAILED_PRECONDITION: the tensor was frozen at Manage.
  absl::StatusOr<bool> Collect(int64_t index);

  // The work of the hook: moves p.grad into the chunk unless it is there.
  absl::Status Move(int64_t index);
  Session& session() { return session_; }

 private:
  // Shared with the hooks: one that a user's hook wraps, or that runs while a user's hook closes the
  // session, outlives this.
  struct Life {
    Gradients* gradients;
  };
  friend class MoveAfterAccumulation;
  ModelTensors& tensors_;
  StorageOwner& owner_;
  Session& session_;
  const std::shared_ptr<Life> life_ = std::make_shared<Life>(Life{this});
};

}  // namespace gemini::client::hooks
