// SPDX-License-Identifier: Apache-2.0
// Describes a run of a tensor's elements in one bundle whose squares are summed for a trust ratio
// (client/kernels/trust_ratio.h), and where their values are stored: in HOST or on DEVICE, in any
// format.
// Thread: any.
// Memory: the caller's.
#pragma once
#include <cstdint>

#include "absl/types/span.h"
#include "client/kernels/element_values.h"
#include "client/kernels/trust_ratio.h"
#include "client/kernels/trust_streams.h"
#include "client/kernels/update_kernel.h"
#include "gemini/system/worker_team.h"

namespace gemini::client {

struct TrustRun {
  int64_t tensor = 0;       // In the order of the space's layout.
  UpdateSettings settings;  // The tensor's, of a layer-wise kind; without its trust ratio.
  // The chunks of the bundle's elements. A moment without chunks stands for zeros, as before its
  // first update.
  ValueChunks param, grad, exp_avg, exp_avg_sq;
  int64_t first = 0;  // Element of the bundle where one of the tensor's norm blocks begins.
  int64_t count = 0;  // Whole blocks, unless the run ends the tensor.
};

// Returns the addresses of the run's values. Its moments must be fp32.
TrustStreams TrustStreamsOf(const TrustRun& run);

// Appends the squares of each block of the runs, one run after the other. Their chunks must be in
// host memory. `team` computes; the bits do not depend on its number of threads.
void AppendRunSquares(absl::Span<const TrustRun> runs, WorkerTeam& team, TrustSquares& squares);

// Appends to the squares of each tensor, which are at its index in `by_tensor`, those of its runs.
// `squares` has them one run after the other.
void GiveToTensors(absl::Span<const TrustRun> runs, const TrustSquares& squares,
                   absl::Span<TrustSquares> by_tensor);

}  // namespace gemini::client
