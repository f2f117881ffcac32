// SPDX-License-Identifier: Apache-2.0
// Finds the tensors of a module that a session can manage, each once, in the order to pack them.
#pragma once
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/element_type.h"
#include "gemini/layout.h"

namespace torch::nn {
class Module;
}

namespace gemini::client::hooks {

struct ModuleTensor {
  std::vector<std::string> names;  // Several for a tied weight; the first is the module's first.
  at::Tensor tensor;  // fp32, bf16 or fp16, dense, on CPU or meta, alone in its storage.
  TensorGroup group = TensorGroup::kTrainable;
  ElementType element = ElementType::kFp32;
};

// Collects parameters and floating buffers. Those named in `first_use_order` are first (names that
// the module does not have are skipped), then the others in the module's order, parameters before
// buffers. Integer and bool buffers and empty tensors are left out and stay in Torch's memory.
// UNIMPLEMENTED: another floating type, device or layout; gaps between elements; a storage shared
// by two different tensors; parameters of two types that require gradients. FAILED_PRECONDITION: a
// tensor is managed already, or an integer buffer is on the meta device (its values could not be
// written). Each error names the tensor.
absl::StatusOr<std::vector<ModuleTensor>> CollectModuleTensors(
    const torch::nn::Module& module, absl::Span<const std::string> first_use_order);

}  // namespace gemini::client::hooks
