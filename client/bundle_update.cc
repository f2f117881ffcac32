// SPDX-License-Identifier: Apache-2.0
#include "client/bundle_update.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "client/adamw.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

float* At(std::byte* chunk, int64_t offset_bytes) {
  return reinterpret_cast<float*>(chunk + offset_bytes);
}
float* At(const HostChunk& chunk, int64_t offset_bytes) { return At(chunk.data(), offset_bytes); }

int64_t ElementsOf(const TensorPiece& piece) {
  return piece.size_bytes / static_cast<int64_t>(sizeof(float));
}

AdamWSettings SettingsOf(const Intent& intent, int64_t index) {
  const TensorIntent& tensor = intent.tensors[index];
  return {.learning_rate = intent.learning_rate,
          .beta1 = intent.beta1,
          .beta2 = intent.beta2,
          .epsilon = intent.epsilon,
          .weight_decay = tensor.decayed ? intent.weight_decay : 0,
          .step = tensor.step,
          .gradient_scale = intent.clip_coefficient};
}

// The slots of one update. Old moments are absent before the first.
struct BundleSlots {
  HostChunk param, exp_avg, exp_avg_sq, grad;
  HostChunk new_param, new_exp_avg, new_exp_avg_sq;
};

absl::StatusOr<BundleSlots> TakeSlots(ChunkStore& store, BundleId bundle) {
  BundleSlots slots;
  GEMINI_ASSIGN_OR_RETURN(slots.param, store.AcquireForUpdate(ChunkOf(bundle, ChunkKind::kParam)));
  for (const auto& [kind, slot] : {std::pair(ChunkKind::kExpAvg, &slots.exp_avg),
                                   std::pair(ChunkKind::kExpAvgSq, &slots.exp_avg_sq)}) {
    if (!store.HasPayload(ChunkOf(bundle, kind))) continue;
    GEMINI_ASSIGN_OR_RETURN(*slot, store.AcquireForUpdate(ChunkOf(bundle, kind)));
  }
  GEMINI_ASSIGN_OR_RETURN(slots.grad, store.AcquireForUpdate(ChunkOf(bundle, ChunkKind::kGrad)));
  GEMINI_ASSIGN_OR_RETURN(slots.new_param, store.AcquireSpareForUpdate());
  GEMINI_ASSIGN_OR_RETURN(slots.new_exp_avg, store.AcquireSpareForUpdate());
  GEMINI_ASSIGN_OR_RETURN(slots.new_exp_avg_sq, store.AcquireSpareForUpdate());
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
void ZeroPadding(absl::Span<const TensorPiece> pieces, int64_t chunk_bytes,
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

absl::StatusOr<bool> UpdateBundle(ChunkStore& store, BundleId bundle,
                                  absl::Span<const TensorPiece> pieces, const Intent& intent) {
  const bool changes = !intent.skip && std::ranges::any_of(pieces, [&](const TensorPiece& piece) {
    return intent.tensors[piece.tensor].has_gradient;
  });
  if (!changes) {
    GEMINI_RETURN_IF_ERROR(store.Commit(bundle, intent.step, {}));
    return false;
  }
  GEMINI_ASSIGN_OR_RETURN(BundleSlots slots, TakeSlots(store, bundle));
  ZeroPadding(pieces, store.chunk_bytes(), slots);
  for (const TensorPiece& piece : pieces) {
    const int64_t at = piece.chunk_offset_bytes;
    if (!intent.tensors[piece.tensor].has_gradient) {
      CopyOrZero(slots.param, slots.new_param, at, piece.size_bytes);
      CopyOrZero(slots.exp_avg, slots.new_exp_avg, at, piece.size_bytes);
      CopyOrZero(slots.exp_avg_sq, slots.new_exp_avg_sq, at, piece.size_bytes);
      continue;
    }
    AdamWUpdate(SettingsOf(intent, piece.tensor),
                {At(slots.param, at), At(slots.grad, at),
                 OldMoment(slots.exp_avg, slots.new_exp_avg, piece),
                 OldMoment(slots.exp_avg_sq, slots.new_exp_avg_sq, piece), At(slots.new_param, at),
                 At(slots.new_exp_avg, at), At(slots.new_exp_avg_sq, at)},
                ElementsOf(piece));
  }
  std::array<std::pair<ChunkKind, HostChunk>, 3> fresh = {
      std::pair(ChunkKind::kParam, std::move(slots.new_param)),
      std::pair(ChunkKind::kExpAvg, std::move(slots.new_exp_avg)),
      std::pair(ChunkKind::kExpAvgSq, std::move(slots.new_exp_avg_sq))};
  slots = {};  // So that the old slots are free with the commit.
  GEMINI_RETURN_IF_ERROR(store.Commit(bundle, intent.step, absl::MakeSpan(fresh)));
  return true;
}

void UpdateInPlace(const BundleInPlace& chunks, absl::Span<const TensorPiece> pieces,
                   const Intent& intent) {
  for (const TensorPiece& piece : pieces) {
    if (!intent.tensors[piece.tensor].has_gradient) continue;
    const int64_t at = piece.chunk_offset_bytes;
    float* const param = At(chunks.param, at);
    float* const exp_avg = At(chunks.exp_avg, at);
    float* const exp_avg_sq = At(chunks.exp_avg_sq, at);
    AdamWUpdate(SettingsOf(intent, piece.tensor),
                {param, reinterpret_cast<const float*>(chunks.grad + at), exp_avg, exp_avg_sq,
                 param, exp_avg, exp_avg_sq},
                ElementsOf(piece));
  }
}

}  // namespace gemini::client
