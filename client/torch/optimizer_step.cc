// SPDX-License-Identifier: Apache-2.0
#include "client/torch/optimizer_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/adamw.h"
#include "client/grad_norm.h"
#include "gemini/status_macros.h"

namespace gemini::client::hooks {
namespace {

bool AnyGradient(const std::vector<TensorPiece>& pieces, const std::vector<bool>& has_gradient) {
  return std::ranges::any_of(pieces,
                             [&](const TensorPiece& piece) { return has_gradient[piece.tensor]; });
}

float* At(const HostChunk& chunk, int64_t offset_bytes) {
  return reinterpret_cast<float*>(chunk.data() + offset_bytes);
}

// The slots of one update. Old moments are absent before the first.
struct BundleSlots {
  HostChunk param, exp_avg, exp_avg_sq, grad;
  HostChunk new_param, new_exp_avg, new_exp_avg_sq;
};

absl::StatusOr<BundleSlots> TakeSlots(ChunkStore& store, BundleId bundle) {
  BundleSlots slots;
  GEMINI_ASSIGN_OR_RETURN(slots.param, store.Acquire(ChunkOf(bundle, ChunkKind::kParam)));
  for (const auto& [kind, slot] : {std::pair(ChunkKind::kExpAvg, &slots.exp_avg),
                                   std::pair(ChunkKind::kExpAvgSq, &slots.exp_avg_sq)}) {
    if (!store.HasPayload(ChunkOf(bundle, kind))) continue;
    GEMINI_ASSIGN_OR_RETURN(*slot, store.Acquire(ChunkOf(bundle, kind)));
  }
  GEMINI_ASSIGN_OR_RETURN(slots.grad, store.AcquireUncommitted(ChunkOf(bundle, ChunkKind::kGrad)));
  GEMINI_ASSIGN_OR_RETURN(slots.new_param, store.AcquireSpare());
  GEMINI_ASSIGN_OR_RETURN(slots.new_exp_avg, store.AcquireSpare());
  GEMINI_ASSIGN_OR_RETURN(slots.new_exp_avg_sq, store.AcquireSpare());
  return slots;
}

void CopyOrZero(const HostChunk& from, const HostChunk& to, int64_t offset_bytes,
                int64_t size_bytes) {
  if (from) {
    std::memcpy(to.data() + offset_bytes, from.data() + offset_bytes,
                static_cast<size_t>(size_bytes));
  } else {
    std::memset(to.data() + offset_bytes, 0, static_cast<size_t>(size_bytes));
  }
}

// Returns where the piece's old moment is: without an old chunk, zeros where the new one goes. Each
// moment has its own say: a caller may have written one and not the other.
float* OldMoment(const HostChunk& old, const HostChunk& fresh, const TensorPiece& piece) {
  if (old) return At(old, piece.chunk_offset_bytes);
  float* const zeros = At(fresh, piece.chunk_offset_bytes);
  std::memset(zeros, 0, static_cast<size_t>(piece.size_bytes));
  return zeros;
}

// Zeroes what no tensor fills: spare slots hold other chunks' old bytes.
void ZeroPadding(const std::vector<TensorPiece>& pieces, int64_t chunk_bytes,
                 const BundleSlots& slots) {
  int64_t end = 0;
  const auto zero = [&](int64_t from, int64_t to) {
    for (const HostChunk* chunk : {&slots.new_param, &slots.new_exp_avg, &slots.new_exp_avg_sq}) {
      std::memset(chunk->data() + from, 0, static_cast<size_t>(to - from));
    }
  };
  for (const TensorPiece& piece : pieces) {
    zero(end, piece.chunk_offset_bytes);
    end = piece.chunk_offset_bytes + piece.size_bytes;
  }
  zero(end, chunk_bytes);
}

}  // namespace

absl::StatusOr<double> GradientNorm(ModelTensors& tensors, const std::vector<bool>& has_gradient) {
  // By tensor: chunks come in another order than tensors where some span or groups differ.
  std::vector<std::vector<double>> squares(tensors.tensors().size());
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    if (!AnyGradient(tensors.pieces(range.first), has_gradient)) continue;
    GEMINI_RETURN_IF_ERROR(tensors.residency().Flush(range.grad));
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      GEMINI_ASSIGN_OR_RETURN(const HostChunk chunk, tensors.store().AcquireUncommitted(
                                                         ChunkOf(bundle, ChunkKind::kGrad)));
      for (const TensorPiece& piece : tensors.pieces(bundle)) {
        if (!has_gradient[piece.tensor]) continue;
        AppendBlockSquares({At(chunk, piece.chunk_offset_bytes),
                            static_cast<size_t>(piece.size_bytes) / sizeof(float)},
                           squares[piece.tensor]);
      }
    }
  }
  std::vector<double> all;
  for (size_t i = 0; i < squares.size(); ++i) {
    if (!std::isfinite(NormOf(squares[i]))) {
      return absl::FailedPreconditionError(
          absl::StrCat("the gradient of ", tensors.tensors()[i].info.name,
                       " holds a NaN or an infinity: the step was not taken"));
    }
    all.insert(all.end(), squares[i].begin(), squares[i].end());
    squares[i] = {};
  }
  const double norm = NormOf(all);
  if (!std::isfinite(norm)) {
    return absl::FailedPreconditionError(
        "the norm of all gradients overflows: the step was not taken");
  }
  return norm;
}

absl::Status FlushForUpdate(ModelTensors& tensors) {
  GEMINI_RETURN_IF_ERROR(tensors.CheckUnpinned("the step was not taken"));
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    GEMINI_RETURN_IF_ERROR(tensors.residency().Flush(range.param));
    GEMINI_RETURN_IF_ERROR(tensors.residency().Flush(range.grad));
  }
  return absl::OkStatus();
}

absl::Status UpdateBundles(ModelTensors& tensors, const std::vector<bool>& has_gradient,
                           const OptimizerSpec& optimizer, double learning_rate,
                           double clip_coefficient, int64_t step, bool& any_committed) {
  any_committed = false;
  ChunkStore& store = tensors.store();
  for (const ModelRange& range : tensors.ranges()) {
    if (range.group != TensorGroup::kTrainable) continue;
    const bool changes = AnyGradient(tensors.pieces(range.first), has_gradient);
    for (int64_t i = 0; i < range.num_bundles; ++i) {
      const BundleId bundle(range.first.value() + i);
      if (!changes) {
        GEMINI_RETURN_IF_ERROR(store.Commit(bundle, step, {}));
        any_committed = true;
        continue;
      }
      const std::vector<TensorPiece>& pieces = tensors.pieces(bundle);
      GEMINI_ASSIGN_OR_RETURN(BundleSlots slots, TakeSlots(store, bundle));
      ZeroPadding(pieces, store.chunk_bytes(), slots);
      for (const TensorPiece& piece : pieces) {
        const ModelTensor& tensor = tensors.tensors()[piece.tensor];
        const int64_t at = piece.chunk_offset_bytes;
        if (!has_gradient[piece.tensor]) {
          CopyOrZero(slots.param, slots.new_param, at, piece.size_bytes);
          CopyOrZero(slots.exp_avg, slots.new_exp_avg, at, piece.size_bytes);
          CopyOrZero(slots.exp_avg_sq, slots.new_exp_avg_sq, at, piece.size_bytes);
          continue;
        }
        AdamWSettings settings;
        settings.learning_rate = learning_rate;
        settings.beta1 = optimizer.beta1;
        settings.beta2 = optimizer.beta2;
        settings.epsilon = optimizer.epsilon;
        settings.weight_decay = tensor.decayed ? optimizer.weight_decay : 0;
        settings.step = tensor.step + 1;
        settings.gradient_scale = clip_coefficient;
        AdamWUpdate(
            settings,
            {At(slots.param, at), At(slots.grad, at),
             OldMoment(slots.exp_avg, slots.new_exp_avg, piece),
             OldMoment(slots.exp_avg_sq, slots.new_exp_avg_sq, piece), At(slots.new_param, at),
             At(slots.new_exp_avg, at), At(slots.new_exp_avg_sq, at)},
            piece.size_bytes / static_cast<int64_t>(sizeof(float)));
      }
      std::array<std::pair<ChunkKind, HostChunk>, 3> fresh = {
          std::pair(ChunkKind::kParam, std::move(slots.new_param)),
          std::pair(ChunkKind::kExpAvg, std::move(slots.new_exp_avg)),
          std::pair(ChunkKind::kExpAvgSq, std::move(slots.new_exp_avg_sq))};
      slots = {};  // So that the old slots are free with the commit.
      GEMINI_RETURN_IF_ERROR(store.Commit(bundle, step, absl::MakeSpan(fresh)));
      any_committed = true;
    }
    if (changes) GEMINI_RETURN_IF_ERROR(tensors.residency().Drop(range.param));
  }
  for (size_t i = 0; i < has_gradient.size(); ++i) {
    if (!has_gradient[i]) continue;
    ModelTensor& tensor = tensors.tensors()[i];
    ++tensor.step;
    // So that backward through a graph from before the step raises, as in plain Torch.
    tensor.tensor.unsafeGetTensorImpl()->bump_version();
  }
  return absl::OkStatus();
}

}  // namespace gemini::client::hooks
