// SPDX-License-Identifier: Apache-2.0
// Defines the function that one thread of the trust-ratio kernel calls for an element. It can also
// be called on the host, where tests compare its bits with the other paths'.
#pragma once
#include <cstdint>

#include "client/kernels/trust_streams.h"
#include "client/kernels/update_run_cuda.h"
#include "gemini/host_device.h"

namespace gemini::client {

// Adds the squares of element i of the run.
template <typename Rule>
GEMINI_HOST_DEVICE void AddTrustSquares(const Rule& rule, const TrustStreams& streams, int64_t i,
                                        double& param_sum, double& direction_sum) {
  const bool is_lower = i < streams.split;
  const UpdateStreams& s = is_lower ? streams.lower : streams.upper;
  const int64_t at = is_lower ? i : i - streams.split;
  float p[1], g[1], m[1] = {}, v[1] = {};
  LoadParam(s, at, p);
  LoadElements(s.grad_type, s.grad, at, g);
  if (s.exp_avg != nullptr) LoadFloats(s.exp_avg, at, m);
  if constexpr (Rule::kHasSecondMoment) {
    if (s.exp_avg_sq != nullptr) LoadFloats(s.exp_avg_sq, at, v);
  }
  const double direction = rule.Direction(p[0], g[0], m[0], v[0]);
  // The squares are exact, so only the sum is rounded.
  param_sum += double{p[0]} * double{p[0]};
  direction_sum += direction * direction;
}

}  // namespace gemini::client
