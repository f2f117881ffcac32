// SPDX-License-Identifier: Apache-2.0
// Makes tensors on the CPU whose memory no session counts, and copies the values of managed tensors
// into them: for what has to be in plain memory at one time, beside the budget of DEVICE.
// Thread: any for MakePlainTensor; others as ManagedModel.
#pragma once
#include <string>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/model/managed_model.h"
#include "gemini/chunk_kind.h"

namespace gemini::client::front {

// Makes a tensor of these sizes, strides and type, with undefined values. RESOURCE_EXHAUSTED: the
// process gets no memory.
absl::StatusOr<at::Tensor> MakePlainTensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                                           at::ScalarType type);

// Copies the values of `kind` of the managed tensor `name` into a new fp32 tensor like `like`, that
// tensor. FAILED_PRECONDITION: it has other sizes now than when it was managed. Other errors: as
// ManagedModel::Read, and as above.
absl::StatusOr<at::Tensor> ReadPlain(hooks::ManagedModel& model, const std::string& name,
                                     ChunkKind kind, const at::Tensor& like);

// Writes `values`, of any floating type and of the managed tensor's sizes, as its values of `kind`.
// INVALID_ARGUMENT: they are undefined, or have other sizes. Other errors: as ReadPlain, and as
// ManagedModel::Write.
absl::Status WritePlain(hooks::ManagedModel& model, const std::string& name, ChunkKind kind,
                        const at::Tensor& like, const at::Tensor& values);

}  // namespace gemini::client::front
