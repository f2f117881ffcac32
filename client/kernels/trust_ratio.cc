// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/trust_ratio.h"

#include "client/kernels/default_rounding.h"
#include "client/kernels/grad_norm.h"
#include "client/kernels/update_loops.h"
#include "client/kernels/update_scalars.h"
#include "gemini/system/check.h"

namespace gemini::client {

namespace {

void FindThrough(VectorPath path, const UpdateSettings& settings, const UpdateStreams& streams,
                 int64_t count, double* param_sums, double* direction_sums) {
  GEMINI_CHECK(IsLayerWise(settings.kind));
  const DefaultRounding rounding;
  LoopsOf(path).trust_squares(settings.kind, ScalarsOf(settings), streams, count, param_sums,
                              direction_sums);
}

}  // namespace

void FindTrustSquares(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count,
                      double* param_sums, double* direction_sums) {
  FindThrough(WidestVectorPath(), settings, streams, count, param_sums, direction_sums);
}

void AppendTrustSquares(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count,
                        TrustSquares& squares) {
  AppendTrustSquaresThrough(WidestVectorPath(), settings, streams, count, squares);
}

void AppendTrustSquaresThrough(VectorPath path, const UpdateSettings& settings,
                               const UpdateStreams& streams, int64_t count, TrustSquares& squares) {
  const auto num_blocks = static_cast<size_t>(NumNormBlocks(count));
  const size_t before = squares.param.size();
  squares.param.resize(before + num_blocks);
  squares.direction.resize(before + num_blocks);
  FindThrough(path, settings, streams, count, squares.param.data() + before,
              squares.direction.data() + before);
}

double TrustRatio(const UpdateSettings& settings, double param_norm, double direction_norm) {
  GEMINI_CHECK(IsLayerWise(settings.kind));
  if (param_norm == 0 || direction_norm == 0) return 1;
  if (settings.kind == OptimizerKind::kLamb) return param_norm / direction_norm;
  return settings.trust_coefficient * param_norm /
         (direction_norm + settings.weight_decay * param_norm);
}

}  // namespace gemini::client
