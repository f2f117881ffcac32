// SPDX-License-Identifier: Apache-2.0
// Finds the order in which a forward pass first uses a module's parameters, which is the order to
// pack them into chunks in.
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
// in the module's order. The module may be on any device. On the meta device nothing is computed,
// and `forward` must use meta inputs. INVALID_ARGUMENT: `forward` threw; the message is the
// exception's.
absl::StatusOr<std::vector<std::string>> FirstUseOrder(const torch::nn::Module& module,
                                                       absl::FunctionRef<void()> forward);

}  // namespace gemini::client::hooks
