// SPDX-License-Identifier: Apache-2.0
// Sums the block squares (client/kernels/grad_norm.h) of a gradient that leaves DEVICE, on DEVICE
// and beside the gradient's copy: a kernel runs after the operator that made the gradient, and a
// small copy of the sums follows the gradient's own.
// Owner: move-only; its memory is Torch's. The gradient and the space live until Keep or the
// destructor, which waits.
// Thread: one at a time.
// Errors: if DEVICE has no memory for the sums, HOST computes them. Other errors are latched in the
// session.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Allocator.h"
#include "client/copy/copy_engine.h"
#include "client/device/pending_write.h"
#include "client/kernels/device_kernels.h"
#include "client/session/session.h"
#include "client/torch/model/model_tensors.h"
#include "client/update/gradient_squares.h"
#include "gemini/element_type.h"
#include "gemini/ids.h"

namespace gemini::client::hooks {

class LeavingSquares {
 public:
  LeavingSquares() = default;
  LeavingSquares(LeavingSquares&&) = default;
  // Waits, as the destructor does.
  LeavingSquares& operator=(LeavingSquares&& other) noexcept {
    copied_ = std::move(other.copied_);
    parts_ = std::move(other.parts_);
    element_ = other.element_;
    on_device_ = std::move(other.on_device_);
    in_host_ = std::move(other.in_host_);
    return *this;
  }

  // Announces that a gradient of tensor `index` is about to be written to its chunks, and discards
  // what `squares` knew of it.
  static LeavingSquares Expect(const ModelTensors& tensors, int64_t index,
                               GradientSquares& squares);

  // Begins to sum the squares of `gradient`, which is in the element order of the chunks and whose
  // copy to HOST has begun, if that is done on DEVICE. Returns whether DEVICE had memory for the
  // sums.
  bool Begin(const at::Tensor& gradient, DeviceKernels& kernels, Session& session);
  // Returns the copy of the sums to HOST.
  PendingWrite& copied() { return copied_; }
  // Passes the sums to `squares`, if they were begun. The caller has waited for copied().
  void Keep(const CopyEngine& copies, GradientSquares& squares);

 private:
  // A part of the tensor that is in one bundle.
  struct Part {
    BundleId bundle;
    size_t piece = 0;
    int64_t ticket = 0;
    int64_t num_blocks = 0;
  };
  std::vector<Part> parts_;  // In the order of the tensor's elements.
  ElementType element_ = ElementType::kFp32;
  c10::DataPtr on_device_, in_host_;
  PendingWrite copied_;  // The destructor waits before they are freed.
};

}  // namespace gemini::client::hooks
