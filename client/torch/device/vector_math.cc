// SPDX-License-Identifier: Apache-2.0
#include "client/torch/device/vector_math.h"

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"

namespace gemini::client::hooks {

void ResolveVectorMath() {
  [[maybe_unused]] static const bool once = [] {
    const at::NoGradGuard no_graph;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      // So short that Torch does not divide it among threads.
      const at::Tensor x = at::full({8}, 0.5, type);
      for (const auto function : {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc,
                                  at::erfinv, at::exp, at::expm1, at::log, at::log10, at::log1p,
                                  at::log2, at::rsqrt, at::sin, at::sqrt, at::tan, at::tanh}) {
        function(x);
      }
    }
    return true;
  }();
}

}  // namespace gemini::client::hooks
