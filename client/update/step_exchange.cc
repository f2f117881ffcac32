// SPDX-License-Identifier: Apache-2.0
#include "client/update/step_exchange.h"

#include <algorithm>
#include <cmath>

#include "client/kernels/grad_norm.h"

namespace gemini::client {

absl::StatusOr<std::optional<double>> NoExchange::AgreeOnNorm(
    const absl::StatusOr<SquaresByTensor>& own) {
  if (!own.ok()) return own.status();
  if (std::ranges::all_of(*own, &std::vector<double>::empty)) return std::nullopt;
  double sum = 0;
  for (const std::vector<double>& squares : *own) sum = AddInOrder(sum, squares);
  return NormOfSum(sum);
}

absl::StatusOr<double> NormOfSum(double sum) {
  const double norm = std::sqrt(sum);
  if (!std::isfinite(norm)) {
    return absl::OutOfRangeError("the norm of all gradients overflows: the step was not taken");
  }
  return norm;
}

absl::Status RefuseStep(StepExchange* exchange, const absl::Status& own) {
  if (exchange == nullptr) return own;
  const absl::StatusOr<std::optional<double>> agreed = exchange->AgreeOnNorm(own);
  return agreed.ok() ? own : agreed.status();
}

}  // namespace gemini::client
