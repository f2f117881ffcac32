// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/trace.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "gemini/protocol.h"

namespace gemini {
namespace {

// An exbibyte: sums of a few such numbers do not overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 60;
// 13 days: who plays some rounds need not look for overflow.
constexpr int64_t kMaxComputeNs = int64_t{1} << 50;
// Plans count positions of two rounds in 32 bits.
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max() / 2;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("not a trace: ", parts...));
}

// Adds `value` (>= 0) to `sum`; false when that would be above `most`.
bool Add(int64_t& sum, int64_t value, int64_t most) {
  if (value > most - sum) return false;
  sum += value;
  return true;
}

// As in "bf16 with adamw and 8bit moments, its states on NVME".
std::string StatesOf(const TracedTensor& tensor) {
  const StateFormat& format = tensor.format;
  return absl::StrCat(ElementTypeName(format.element), " with ",
                      OptimizerKindName(format.optimizer), " and ",
                      kMomentFormatNames[static_cast<int>(format.moments)], " moments",
                      tensor.states_on_nvme ? ", its states on NVME" : "");
}

absl::Status CheckTensors(const Trace& trace) {
  int64_t bytes = 0;
  int32_t space = 0;
  const TracedTensor* trainable = nullptr;  // The one before, of the same space.
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TracedTensor& tensor = trace.tensors[i];
    if (tensor.size_bytes < 0 || !Add(bytes, tensor.size_bytes, kMaxBytes)) {
      return Wrong("tensor ", i, " has ", tensor.size_bytes, " bytes");
    }
    if (tensor.group != TensorGroup::kTrainable && tensor.group != TensorGroup::kFrozen &&
        tensor.group != TensorGroup::kBuffer) {
      return Wrong("tensor ", i, " is of group ", static_cast<int>(tensor.group));
    }
    if (tensor.space != space && (i == 0 || tensor.space != space + 1)) {
      return Wrong("tensor ", i, " is of space ", tensor.space, " after one of space ", space);
    }
    if (tensor.space >= kMaxSpacesPerSession) {
      return Wrong("tensor ", i, " is of space ", tensor.space, ", at most ",
                   kMaxSpacesPerSession - 1);
    }
    if (tensor.space != space) trainable = nullptr;
    space = tensor.space;
    if (static_cast<int>(tensor.format.element) >= kNumElementTypes) {
      return Wrong("tensor ", i, " has elements of type ", static_cast<int>(tensor.format.element));
    }
    if (static_cast<int>(tensor.format.optimizer) >= kNumOptimizerKinds) {
      return Wrong("tensor ", i, " has optimizer ", static_cast<int>(tensor.format.optimizer));
    }
    if (static_cast<int>(tensor.format.moments) >= kNumMomentFormats) {
      return Wrong("tensor ", i, " has moments of format ",
                   static_cast<int>(tensor.format.moments));
    }
    if (tensor.group != TensorGroup::kTrainable) continue;
    if (trainable != nullptr && (trainable->format != tensor.format ||
                                 trainable->states_on_nvme != tensor.states_on_nvme)) {
      return Wrong("tensor ", i, " is of ", StatesOf(tensor), " after trainable ones of ",
                   StatesOf(*trainable));
    }
    trainable = &tensor;
  }
  return absl::OkStatus();
}

absl::Status CheckOperators(const Trace& trace) {
  if (trace.operators.empty() || trace.operators.size() > kMaxPositions) {
    return Wrong(trace.operators.size(), " operators, of 1 to ", kMaxPositions);
  }
  if (trace.uses.size() > kMaxPositions) return Wrong(trace.uses.size(), " uses");
  int64_t next_use = 0, compute_ns = 0;
  for (size_t i = 0; i < trace.operators.size(); ++i) {
    const TracedOperator& at = trace.operators[i];
    if (at.first_use != next_use || at.num_uses < 0) {
      return Wrong("operator ", i, " has ", at.num_uses, " uses from ", at.first_use, ", not from ",
                   next_use);
    }
    next_use += at.num_uses;
    if (at.compute_ns < 0 || !Add(compute_ns, at.compute_ns, kMaxComputeNs)) {
      return Wrong("operator ", i, " computes for ", at.compute_ns, " ns");
    }
    if (at.non_model_peak_bytes < 0 || at.non_model_peak_bytes > kMaxBytes) {
      return Wrong("operator ", i, " has ", at.non_model_peak_bytes, " bytes of non-model data");
    }
  }
  if (!trace.room_bytes.empty() && trace.room_bytes.size() != trace.operators.size()) {
    return Wrong("room for ", trace.room_bytes.size(), " operators of ", trace.operators.size());
  }
  for (size_t i = 0; i < trace.room_bytes.size(); ++i) {
    const int64_t bytes = trace.room_bytes[i];
    if (bytes < 0 || bytes > kMaxBytes) {
      return Wrong("operator ", i, " has room for ", bytes, " bytes of non-model data");
    }
  }
  if (next_use != static_cast<int64_t>(trace.uses.size())) {
    return Wrong("operators have ", next_use, " of ", trace.uses.size(), " uses");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTrace(const Trace& trace) {
  if (absl::Status status = CheckTensors(trace); !status.ok()) return status;
  if (absl::Status status = CheckOperators(trace); !status.ok()) return status;
  const int64_t num_tensors = static_cast<int64_t>(trace.tensors.size());
  const auto is_tensor = [&](int32_t i) { return i >= 0 && i < num_tensors; };
  const auto is_trainable = [&](int32_t i) {
    return is_tensor(i) && trace.tensors[i].group == TensorGroup::kTrainable;
  };
  for (size_t i = 0; i < trace.uses.size(); ++i) {
    const TensorUse& use = trace.uses[i];
    const bool is_grad = use.kind == ChunkKind::kGrad;
    if (!is_tensor(use.tensor) || (!is_grad && use.kind != ChunkKind::kParam) ||
        (is_grad && !is_trainable(use.tensor))) {
      return Wrong("use ", i, " is of kind ", static_cast<int>(use.kind), " of tensor ", use.tensor,
                   " of ", num_tensors);
    }
  }
  int32_t position = 0;
  for (size_t i = 0; i < trace.gradient_outs.size(); ++i) {
    const GradientOut& out = trace.gradient_outs[i];
    if (out.position < position || out.position >= trace.num_positions()) {
      return Wrong("gradient ", i, " leaves at position ", out.position, " after ", position,
                   ", of ", trace.num_positions());
    }
    if (!is_trainable(out.tensor)) return Wrong("gradient ", i, " of tensor ", out.tensor);
    position = out.position;
  }
  std::vector<bool> seen(trace.tensors.size());
  for (const int32_t tensor : trace.updated) {
    if (!is_trainable(tensor) || seen[tensor]) {
      return Wrong("an update of tensor ", tensor, ": it is not trainable, or comes twice");
    }
    seen[tensor] = true;
  }
  if (trace.ends_with_update() && trace.operators.back().num_uses != 0) {
    return Wrong("the update's operator has ", trace.operators.back().num_uses, " uses");
  }
  return absl::OkStatus();
}

uint64_t Fingerprint(const Trace& trace) {
  // FNV-1a over 64-bit words, with a final mix: it is kept with the space, so it must be the same
  // in every process, which absl::Hash is not.
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
    hash ^= hash >> 29;
  };
  add(static_cast<int64_t>(trace.tensors.size()));
  for (const TracedTensor& tensor : trace.tensors) {
    add(tensor.size_bytes);
    add(static_cast<int64_t>(tensor.states_on_nvme) << 62 |
        static_cast<int64_t>(tensor.format.moments) << 56 |
        static_cast<int64_t>(tensor.format.optimizer) << 48 |
        static_cast<int64_t>(tensor.format.element) << 40 |
        static_cast<int64_t>(tensor.group) << 32 | tensor.space);
  }
  add(static_cast<int64_t>(trace.operators.size()));
  for (const TracedOperator& at : trace.operators) add(at.num_uses);
  for (const TensorUse& use : trace.uses) {
    add(static_cast<int64_t>(use.tensor) << 8 | static_cast<int64_t>(use.kind) << 1 |
        (use.written ? 1 : 0));
  }
  add(static_cast<int64_t>(trace.gradient_outs.size()));
  for (const GradientOut& out : trace.gradient_outs) {
    add(static_cast<int64_t>(out.position) << 32 | out.tensor);
  }
  add(static_cast<int64_t>(trace.updated.size()));
  for (const int32_t tensor : trace.updated) add(tensor);
  hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccd;
  return hash ^ hash >> 33;
}

}  // namespace gemini
