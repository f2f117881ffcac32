// SPDX-License-Identifier: Apache-2.0
// The intent of an optimizer step: all that is needed, beside the chunks, to finish the updates of
// bundles that are not committed at its step yet.
// Writer: the space's client, when every bundle is committed at the step before and every gradient is
//         complete in HOST or NVME: a slot's words first, then the intent word with release order.
//         Two slots are used in turn, so the one that the word names is not rewritten before another
//         is named; and it is named while one of its bundles is pending.
// Reader: memstat, and the server when the client has died: acquire the word once, read the slot that
//         it names, validate. At any moment each bundle is committed at the intent's step or before it.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace gemini {

// The arithmetic of client/adamw.h; raised when its bits change.
inline constexpr uint64_t kUpdateKernelVersion = 1;

inline constexpr int kNumIntentSlots = 2;
// Head of a slot; behind it one word a tensor. Reals are the bits of a double.
struct IntentShm {
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> learning_rate;
  std::atomic<uint64_t> beta1;
  std::atomic<uint64_t> beta2;
  std::atomic<uint64_t> epsilon;
  std::atomic<uint64_t> weight_decay;
  std::atomic<uint64_t> clip_coefficient;
  std::atomic<uint64_t> kernel_version;
  std::atomic<uint64_t> skip;  // 0 or 1. 1: bundles go to the step with the values that they have.
  std::atomic<uint64_t> num_tensors;
  std::atomic<uint64_t> reserved[6];
};
static_assert(sizeof(IntentShm) == 128);

// Bytes of one slot of a space of `num_tensors`.
constexpr int64_t IntentSlotBytes(int64_t num_tensors) {
  return static_cast<int64_t>(sizeof(IntentShm)) + 8 * num_tensors;
}

struct TensorIntent {
  bool has_gradient = false;  // False: its values stay.
  bool decayed = false;
  int64_t step = 0;  // Its own count of updates after this step; below 2^62.
  bool operator==(const TensorIntent&) const = default;
};

struct Intent {
  int64_t step = 0;  // > 0: the step that its bundles are committed at.
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double clip_coefficient = 1;
  uint64_t kernel_version = kUpdateKernelVersion;
  bool skip = false;
  std::vector<TensorIntent> tensors;  // In the order of the space's layout.
  bool operator==(const Intent&) const = default;
};

// The word in the segment's header: 0, or {step:63, slot:1} of the latest complete intent.
constexpr uint64_t PackIntentWord(int64_t step, int slot) {
  return static_cast<uint64_t>(step) << 1 | static_cast<uint64_t>(slot);
}

// Tensor word: has_gradient in bit 0, decayed in bit 1, step above.
uint64_t PackTensorIntent(const TensorIntent& tensor);
TensorIntent UnpackTensorIntent(uint64_t word);

// Reads the intent that `word` names in `slots`, the first of two of a space of `num_tensors`. Each
// word is read once. Nothing: no intent was recorded, the slot is another step's or was rewritten
// meanwhile (`word` is then old: read it again), or it holds what no honest client writes.
std::optional<Intent> TryReadIntent(const std::atomic<uint64_t>& word, const IntentShm* slots,
                                    int64_t num_tensors);

}  // namespace gemini
