// SPDX-License-Identifier: Apache-2.0
// Declares the table of the loops behind updates and norms, which are compiled once for each
// instruction set. client/kernels/update_kernel.cc, client/kernels/grad_norm.cc and
// client/kernels/trust_ratio.cc choose among them; other code calls those.
#pragma once
#include <cstdint>

#include "client/kernels/update_scalars.h"
#include "client/kernels/update_streams.h"
#include "client/kernels/vector_path.h"
#include "gemini/element_type.h"
#include "gemini/optimizer_kind.h"

namespace gemini::client {

inline constexpr int64_t kUpdateStepElements = 32;
// Equal to kNormBlockElements of client/kernels/grad_norm.h, which these sources cannot include.
inline constexpr int64_t kNormLoopBlockElements = 1024;

// How an update stores. For stores past the caches, each output stream of the group is at a
// multiple of 64 bytes at element `head_elements`.
struct StoreKind {
  bool param_past_caches = false;
  bool moments_past_caches = false;
  int64_t head_elements = 0;  // Less than a step; these are updated first, on their own.
};

struct UpdateLoops {
  // Updates the elements, without a fence at the end.
  void (*update)(OptimizerKind kind, const UpdateScalars& scalars, const UpdateStreams& streams,
                 StoreKind stores, int64_t count);
  // Orders stores past the caches before all later ones.
  void (*fence)();
  // Sums the squares of each block, as client/kernels/grad_norm.h says.
  void (*squares)(ElementType type, const void* values, int64_t count, double* sums);
  // Sums the squares of the parameter and of the rule's direction for each block, for layer-wise
  // kinds.
  void (*trust_squares)(OptimizerKind kind, const UpdateScalars& scalars,
                        const UpdateStreams& streams, int64_t count, double* param_sums,
                        double* direction_sums);
};

// Returns which groups of outputs are stored past the caches: those of which no output is its own
// input, which is in the caches already, if all that are stored so can be aligned at once.
StoreKind StoresOf(const UpdateStreams& streams);

// Returns the loops of `path`, which must be available.
const UpdateLoops& LoopsOf(VectorPath path);

extern const UpdateLoops kUpdateLoopsPortable;
extern const UpdateLoops kUpdateLoopsAvx2;    // x86-64 only.
extern const UpdateLoops kUpdateLoopsAvx512;  // x86-64 only.

}  // namespace gemini::client
