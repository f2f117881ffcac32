// SPDX-License-Identifier: Apache-2.0
// Writes and reads a model with its optimizer as one safetensors file, tensor by tensor.
// Content: parameters and floating buffers under their names, as fp32; the module's other buffers
//         as they are; "optimizer.exp_avg.NAME" and "optimizer.exp_avg_sq.NAME" of the states that
//         there are; "optimizer.steps", of each trained parameter in the order of the file; and
//         "optimizer.groups", a row of options a parameter group. Metadata "optimizer": its kind.
// Thread: as ManagedModel. Blocks on the disk.
#pragma once
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/front/front_model.h"
#include "torch/optim/optimizer.h"

namespace gemini::client::front {

// Errors: as SafetensorsWriter's and ManagedModel::Read's; the file does not appear then.
absl::Status SaveModel(const FrontModel& model,
                       const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       const std::string& path);

// FAILED_PRECONDITION, and nothing has changed: the file is of another optimizer, or has other
// tensors or groups (names the first). Others: as SafetensorsReader's and ManagedModel::Write's.
absl::Status LoadModel(FrontModel& model, const std::string& path,
                       std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace gemini::client::front
