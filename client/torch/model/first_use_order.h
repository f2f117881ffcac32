// SPDX-License-Identifier: Apache-2.0
// The order in which a forward pass first uses a module's parameters: the order to pack them in.
// Source: chunk packing of PatrickStar (Fang et al., arXiv:2108.05818, section 5), taken from a dry
//         run on the meta device in place of the module's definition order.
#pragma once
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace torch::nn {
class Module;
}

namespace gemini::client::hooks {

// Runs `forward` on this thread without gradients and returns the names of the module's parameters
// and buffers in the order in which operators first took them as input; those it did not use follow
// in the module's order. The module may lie anywhere; on the meta device nothing is computed (give
// `forward` meta inputs then). INVALID_ARGUMENT: `forward` threw (its message).
absl::StatusOr<std::vector<std::string>> FirstUseOrder(const torch::nn::Module& module,
                                                       absl::FunctionRef<void()> forward);

}  // namespace gemini::client::hooks
