// SPDX-License-Identifier: Apache-2.0
// The block squares of a gradient (client/grad_norm.h) that leaves DEVICE, summed there beside its copy: by a kernel behind
// the operator that made it, and a small copy behind the gradient's own.
// Owner:  move-only; its memory is Torch's. The gradient and the space live until Keep or the end, which waits.
// Thread: one at a time. Errors: DEVICE without memory for the sums: HOST computes them. Others are latched.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "client/copy_engine.h"
#include "client/device_kernels.h"
#include "client/gradient_squares.h"
#include "client/pending_write.h"
#include "client/session.h"
#include "client/torch/model_tensors.h"
#include "gemini/element_type.h"
#include "gemini/ids.h"

namespace gemini::client::hooks {

class LeavingSquares {
 public:
  // A gradient of tensor `index` is about to be written to its chunks: what `squares` knew of it is void.
  static LeavingSquares Expect(const ModelTensors& tensors, int64_t index,
                               GradientSquares& squares);

  // Begins to sum `gradient`, whose elements lie as in the chunks and whose copy out has begun, if that is done on
  // DEVICE.
  void Begin(const at::Tensor& gradient, DeviceKernels& kernels, Session& session);
  // Waits until the sums are in HOST, and has `squares` keep them. No-op if they were not begun.
  void Keep(const CopyEngine& copies, GradientSquares& squares);

 private:
  // A part of the tensor that lies in one bundle.
  struct Part {
    BundleId bundle;
    size_t piece = 0;
    int64_t ticket = 0;
    int64_t num_blocks = 0;
  };
  std::vector<Part> parts_;  // In the order of the tensor's elements.
  ElementType element_ = ElementType::kFp32;
  at::Tensor on_device_, in_host_;
  PendingWrite copied_;  // Waits at its end, before they are freed.
};

}  // namespace gemini::client::hooks
