// SPDX-License-Identifier: Apache-2.0
// Updates a run of elements of one tensor. The arithmetic is specified: the bits are the same on
// every machine, in place or out of place, and however the elements are split into calls and their
// streams are aligned. client/kernels/update_rules.h has the formulas, and
// client/kernels/update_streams.h the formats and addresses.
// Speed:  that of the memory. Outputs that are not their inputs are stored past the caches, if the
//         processor can do that and some element is at a multiple of 64 bytes in all of them.
//         Pieces of tensors begin at such an element.
// NaN:    NaN and infinity pass through; a NaN that is stored is always 0x7fc00000 (0x7fc0 with low
//         half 0 in bf16, 0x7e00 in fp16). Denormals are kept.
// Thread: any; the calling thread does all the work.
#pragma once
#include <cstdint>

#include "client/kernels/update_streams.h"
#include "client/kernels/vector_path.h"
#include "gemini/optimizer_kind.h"

namespace gemini::client {

// How many elements of a bundle one thread of a team updates at a time, in some 40 us. They are
// whole blocks of norms and of 8-bit moments, and whole cache lines of every stream.
inline constexpr int64_t kUpdatePartElements = 16384;

// Scalars of one tensor's update. A kind ignores those that its formula does not name.
struct UpdateSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.9;
  double dampening = 0;
  bool nesterov = false;
  double trust_coefficient = 1e-3;  // eta of LARS.
  int64_t step = 1;                 // t: 1 at the first update of the tensor.
  double gradient_scale = 1;        // The clip coefficient divided by the loss scale.
  double trust_ratio = 1;  // The tensor's, for layer-wise kinds (client/kernels/trust_ratio.h).
};

// Updates `count` elements. Never fails.
void UpdateElements(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count);

// As UpdateElements, through `path`, which must be available.
void UpdateElementsThrough(VectorPath path, const UpdateSettings& settings,
                           const UpdateStreams& streams, int64_t count);

}  // namespace gemini::client
