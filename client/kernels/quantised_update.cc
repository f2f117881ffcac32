// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/quantised_update.h"

#include <algorithm>

#include "client/kernels/default_rounding.h"
#include "client/kernels/update_loops.h"
#include "client/kernels/update_scalars.h"

namespace gemini::client {
namespace {

constexpr int64_t kBlock = kQuantisationBlockElements;

template <typename T>
T* After(T* stream, int64_t count) {
  return stream == nullptr ? nullptr : stream + count;
}

// A stream's address `bytes` further on.
const void* After(const void* stream, int64_t bytes) {
  return After(static_cast<const char*>(stream), bytes);
}
void* After(void* stream, int64_t bytes) { return After(static_cast<char*>(stream), bytes); }

// The block's streams, with its moments in place.
UpdateStreams BlockStreams(const UpdateStreams& s, int64_t begin, float* exp_avg,
                           float* exp_avg_sq) {
  const int64_t param_bytes = begin * ElementBytes(s.param_type);
  const int64_t master_bytes = begin * MasterBytes(s.param_type);
  return {.param_type = s.param_type,
          .grad_type = s.grad_type,
          .param = After(s.param, param_bytes),
          .master = After(s.master, master_bytes),
          .grad = After(s.grad, begin * ElementBytes(s.grad_type)),
          .exp_avg = exp_avg,
          .exp_avg_sq = exp_avg_sq,
          .new_param = After(s.new_param, param_bytes),
          .new_master = After(s.new_master, master_bytes),
          .new_exp_avg = exp_avg,
          .new_exp_avg_sq = exp_avg_sq};
}

void Dequantise(MomentCode code, const QuantisedMoment& moment, int64_t begin, int64_t count,
                float* values) {
  DequantiseMoment(code, After(moment.codes, begin), After(moment.scales, begin / kBlock), count,
                   values);
}

}  // namespace

void UpdateElementsQuantised(const UpdateSettings& settings, const UpdateStreams& streams,
                             const QuantisedMoments& moments, int64_t first_element, int64_t count,
                             const StochasticRounding* stochastic) {
  UpdateElementsQuantisedThrough(WidestVectorPath(), settings, streams, moments, first_element,
                                 count, stochastic);
}

void UpdateElementsQuantisedThrough(VectorPath path, const UpdateSettings& settings,
                                    const UpdateStreams& streams, const QuantisedMoments& moments,
                                    int64_t first_element, int64_t count,
                                    const StochasticRounding* stochastic) {
  const bool has_second_moment = HasSecondMoment(settings.kind);
  const UpdateScalars scalars = ScalarsOf(settings);
  const UpdateLoops& loops = LoopsOf(path);
  const DefaultRounding rounding;
  alignas(64) float exp_avg[kBlock];
  alignas(64) float exp_avg_sq[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    Dequantise(MomentCode::kSigned, moments.exp_avg, begin, size, exp_avg);
    if (has_second_moment) {
      Dequantise(MomentCode::kUnsigned, moments.exp_avg_sq, begin, size, exp_avg_sq);
    }
    const UpdateStreams block =
        BlockStreams(streams, begin, exp_avg, has_second_moment ? exp_avg_sq : nullptr);
    loops.update(settings.kind, scalars, block, StoresOf(block), size);
    const auto quantise = [&](MomentCode code, const float* values, const QuantisedMoment& moment) {
      QuantiseMoment(code, values, first_element + begin, size, stochastic,
                     moment.new_codes + begin, moment.new_scales + begin / kBlock);
    };
    quantise(MomentCode::kSigned, exp_avg, moments.exp_avg);
    if (has_second_moment) quantise(MomentCode::kUnsigned, exp_avg_sq, moments.exp_avg_sq);
  }
  loops.fence();
}

}  // namespace gemini::client
