// SPDX-License-Identifier: Apache-2.0
#include "policies/mesh/zero_costs.h"

namespace gemini::policies {

double ZeroBytesOfPaper(int stage, int64_t num_ranks, const ParameterBytes& bytes) {
  const double part = 1 / static_cast<double>(num_ranks);
  return bytes.parameter * (stage >= 3 ? part : 1) + bytes.gradient * (stage >= 2 ? part : 1) +
         bytes.states * (stage >= 1 ? part : 1);
}

double ZeroBytes(int stage, int64_t num_ranks, const ParameterBytes& bytes, const ZeroStep& step) {
  if (stage == 0) return bytes.all();
  const bool has_whole_gradients = stage == 1 && !step.adds_each;
  const double whole =
      (stage <= 2 ? bytes.parameter : 0) + (has_whole_gradients ? bytes.gradient : 0);
  return whole + bytes.all() / static_cast<double>(num_ranks);
}

double ZeroElementsSent(int stage, int64_t num_ranks, const ZeroStep& step) {
  const double ranks = static_cast<double>(num_ranks);
  const double micro_batches = static_cast<double>(step.micro_batches);
  const double sums = step.adds_each || stage >= 2 ? micro_batches : 1;
  double gathers = 1;              // New parameters, behind the update.
  if (stage == 0) gathers = sums;  // The other half of an all-reduce.
  // In the forward pass and again in backward, or, vertically, once in each.
  if (stage == 3) gathers = step.is_vertical ? 2 : 2 * micro_batches;
  return (sums + gathers) * (ranks - 1) / ranks;
}

}  // namespace gemini::policies
