// SPDX-License-Identifier: Apache-2.0
// Updates a run of elements whose moments are in 8 bits (client/kernels/moment_quantisation.h).
// Block by block, it converts the old moments to fp32, runs the update of
// client/kernels/update_kernel.h, and converts the new moments to codes. A block stays in the
// first-level cache meanwhile, and fp32 moments are never written to memory.
// Thread: any; the calling thread does all the work.
#pragma once
#include <cstdint>

#include "client/kernels/moment_quantisation.h"
#include "client/kernels/update_kernel.h"

namespace gemini::client {

// A moment's streams: a code for each element and a scale for each block. Old streams may be null,
// which stands for zeros. New streams may be the old ones.
struct QuantisedMoment {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  uint8_t* new_codes = nullptr;
  float* new_scales = nullptr;
};

struct QuantisedMoments {
  QuantisedMoment exp_avg;
  QuantisedMoment exp_avg_sq;  // Unused by kinds without a second moment.
};

// Updates `count` elements from the tensor's `first_element` on, which begins a block; all calls
// except the tensor's last are of whole blocks. The moments of `streams` are ignored. If
// `stochastic` is null, moments are rounded to nearest.
void UpdateElementsQuantised(const UpdateSettings& settings, const UpdateStreams& streams,
                             const QuantisedMoments& moments, int64_t first_element, int64_t count,
                             const StochasticRounding* stochastic = nullptr);

// As UpdateElementsQuantised, through `path`, which must be available.
void UpdateElementsQuantisedThrough(VectorPath path, const UpdateSettings& settings,
                                    const UpdateStreams& streams, const QuantisedMoments& moments,
                                    int64_t first_element, int64_t count,
                                    const StochasticRounding* stochastic = nullptr);

}  // namespace gemini::client
