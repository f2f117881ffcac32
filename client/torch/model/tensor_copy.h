// SPDX-License-Identifier: Apache-2.0
// Copies a managed tensor's bytes to a tensor of the caller's on the session's device. The managed
// one is not brought to its own place there, so no plan has to know of it.
// Thread: any, as operators.
#pragma once
#include "ATen/core/TensorBody.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/device/device_range.h"
#include "client/session/session.h"

namespace gemini::client::hooks {

struct PendingCopy {
  RangeId range;
  CopyEvent copied;
};

// Begins to copy a parameter or buffer of the session to `to`, which is contiguous, of the
// session's device and of as many bytes, and not managed; it lives until the copy is done.
// FAILED_PRECONDITION: `tensor` is not managed, or has no values. INVALID_ARGUMENT: `to` is no such
// tensor. Others: as BeginRead (client/device/range_read.h).
absl::StatusOr<PendingCopy> BeginCopy(Session& session, const at::Tensor& tensor,
                                      const at::Tensor& to);
// Makes operators that the calling thread begins next find what was copied.
void AwaitCopy(Session& session, const PendingCopy& copy);

}  // namespace gemini::client::hooks
