// SPDX-License-Identifier: Apache-2.0
// Defines a trace: what one round of a phase does with memory. It says which tensors each operator
// touches, what else lies on DEVICE meanwhile, and how long each operator computes. It is about
// tensors, not chunks, so the same trace can be packed into chunks of any size
// (policies/trace/range_trace.h).
// Round: one pass of a phase, a training step or an evaluation batch. Its operators are numbered
// from 0: their positions. The round is circular: its end is followed by its beginning.
// Operator: an operator that touches a managed tensor which is not pinned yet. What it calls
// belongs to it.
// Interval: the interval of position i begins when operator i asks for its tensors and ends when
// operator i + 1 does, or for the last one when the next round's first does.
// Update: a training step ends with an operator without uses that stands for it. At its position
// the intent is recorded, and the DEVICE copies of all updated parameters become stale.
// Units: bytes, nanoseconds; tensors by index.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gemini/chunk_kind.h"
#include "gemini/layout.h"
#include "gemini/state_format.h"

namespace gemini {

struct TracedTensor {
  int64_t size_bytes = 0;
  TensorGroup group = TensorGroup::kTrainable;
  // Index of its space in the session; tensors are in the order of their layout.
  int32_t space = 0;
  StateFormat format = {};      // For a trainable tensor: the same in all of a space.
  bool states_on_nvme = false;  // Whether NVME is the home of its optimizer states; as the format.
  bool operator==(const TracedTensor&) const = default;
};

struct TensorUse {
  int32_t tensor = 0;
  ChunkKind kind = ChunkKind::kParam;  // kParam or kGrad.
  bool written = false;
  bool operator==(const TensorUse&) const = default;
};

struct TracedOperator {
  int32_t first_use = 0;  // Index in Trace::uses; this operator's are consecutive.
  int32_t num_uses = 0;
  int64_t compute_ns = 0;            // Its interval without the time it waited for tensors.
  int64_t non_model_peak_bytes = 0;  // Largest sum of non-model data in its interval.
  bool operator==(const TracedOperator&) const = default;
};

// A gradient that is complete: it leaves DEVICE for its chunk in HOST, or is kept for an update
// there.
struct GradientOut {
  int32_t position = 0;  // The interval in which it leaves; ascending.
  int32_t tensor = 0;
  bool operator==(const GradientOut&) const = default;
};

struct Trace {
  std::string phase;
  std::vector<TracedTensor> tensors;
  std::vector<TracedOperator>
      operators;  // By position; the last stands for the update, if there is one.
  std::vector<TensorUse> uses;
  std::vector<GradientOut> gradient_outs;
  // Tensors that the update changes, in the order of the updates: first used first. Empty if there
  // is no update.
  std::vector<int32_t> updated;
  // By position, for how much non-model data a plan should leave room, if DEVICE has as much: what
  // rounds with other batches may need. It counts where it is above the peak, which is what rounds
  // did need. Empty: nothing is known.
  std::vector<int64_t> room_bytes = {};

  int32_t num_positions() const { return static_cast<int32_t>(operators.size()); }
  bool ends_with_update() const { return !updated.empty(); }
  absl::Span<const TensorUse> uses_of(int32_t position) const {
    const TracedOperator& at = operators[position];
    return absl::MakeConstSpan(uses).subspan(at.first_use, at.num_uses);
  }
  bool operator==(const Trace&) const = default;
};

// Checks everything that a reader relies on. Indices are in range, uses are consecutive and of
// kParam or kGrad, sizes and times are >= 0, positions ascend, spaces ascend from 0 with one format
// each, an update's operator has no uses, and updated tensors are trainable and listed once each.
// All tensors together, and the non-model data and the room of each operator, have 2^60 bytes at
// most, and all operators compute for 2^50 ns at most. INVALID_ARGUMENT names what is wrong.
absl::Status CheckTrace(const Trace& trace);

// Returns a hash of what the round touches, without times, peaks and room. Two rounds with the same
// fingerprint can follow the same plan.
uint64_t Fingerprint(const Trace& trace);

}  // namespace gemini
