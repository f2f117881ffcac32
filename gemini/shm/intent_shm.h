// SPDX-License-Identifier: Apache-2.0
// Defines the intent of an optimizer step: all that is needed, beside the chunks, to finish the
// updates of bundles that are not committed at its step yet.
// Device: for each bundle that was updated on DEVICE, in place, before the intent, it names a
// complete record. The intent word makes these versions valid, and at the same moment binds whoever
// recovers to finish the others (ValidVersion). Until that moment the version before is whole in
// HOST or NVME.
// Late: a gradient may still be complete on DEVICE, as the residency words say, and be written back
// after the intent. Until then a dead trainer's arena has to be kept for it, as for bundles that
// were updated on DEVICE and not written back.
// Writer: the space's client, when every bundle is committed at the step before and the gradient of
// every other bundle is complete in HOST or NVME, or late. It writes a slot's words first, then the
// intent word with release order, then the commit words of the bundles that the intent names
// records of. Two slots are used in turn, so the slot that the word names is not rewritten before
// another is named. It stays named while one of its bundles is pending.
// Reader: memstat, and the server when the client has died. They acquire the word once, read the
// slot that it names and validate it. At any moment each bundle is committed at the intent's step
// or at the one before.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "gemini/ids.h"
#include "gemini/optimizer_kind.h"
#include "gemini/shm/commit_shm.h"

namespace gemini {

// The version of the arithmetic in client/kernels/update_kernel.h; raised when its bits change.
inline constexpr uint64_t kUpdateKernelVersion = 3;

inline constexpr int kNumIntentSlots = 2;
// Parameter groups of a model, each with hyper-parameters of its own. A model of 24 blocks that
// lowers the rate block by block, with and without decay, has 50.
inline constexpr int kMaxParameterGroups = 64;

// Hyper-parameters of one parameter group other than the first; reals are the bits of a double.
struct IntentGroupShm {
  std::atomic<uint64_t> learning_rate;
  std::atomic<uint64_t> beta1;
  std::atomic<uint64_t> beta2;
  std::atomic<uint64_t> epsilon;
  std::atomic<uint64_t> weight_decay;
  std::atomic<uint64_t> momentum;
  std::atomic<uint64_t> dampening;
  std::atomic<uint64_t> nesterov;  // 0 or 1.
};
static_assert(sizeof(IntentGroupShm) == 64);

// Head of a slot; behind it two words a tensor, its own (PackTensorIntent) and its trust ratio,
// then one a bundle: 0, or the index of a record + 1; then kMaxParameterGroups - 1 of
// IntentGroupShm. Reals are the bits of a double.
struct IntentShm {
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> learning_rate;
  std::atomic<uint64_t> beta1;
  std::atomic<uint64_t> beta2;
  std::atomic<uint64_t> epsilon;
  std::atomic<uint64_t> weight_decay;
  std::atomic<uint64_t> gradient_scale;
  std::atomic<uint64_t> kernel_version;
  // Is 0 or 1. With 1, bundles are committed at the step with unchanged values.
  std::atomic<uint64_t> skip;
  std::atomic<uint64_t> num_tensors;
  std::atomic<uint64_t> optimizer;  // An OptimizerKind.
  std::atomic<uint64_t> momentum;
  std::atomic<uint64_t> rounding_seed;
  std::atomic<uint64_t> dampening;
  std::atomic<uint64_t> nesterov;         // 0 or 1.
  std::atomic<uint64_t> num_more_groups;  // Beside the first, whose hyper-parameters stand here.
};
static_assert(sizeof(IntentShm) == 128);

// Returns the bytes of one slot of a space.
constexpr int64_t IntentSlotBytes(int64_t num_tensors, int64_t num_bundles) {
  return static_cast<int64_t>(sizeof(IntentShm)) + 8 * (2 * num_tensors + num_bundles) +
         (kMaxParameterGroups - 1) * static_cast<int64_t>(sizeof(IntentGroupShm));
}

struct TensorIntent {
  bool has_gradient = false;  // If false, its values stay.
  bool decayed = false;       // If false, its group's weight decay does not apply to it.
  int64_t step = 0;           // The tensor's own count of updates after this step; below 2^56.
  double trust_ratio = 1;     // For layer-wise optimizers (client/kernels/trust_ratio.h).
  int group = 0;              // Its parameter group; below kMaxParameterGroups.
  bool operator==(const TensorIntent&) const = default;
};

// Names the record that holds a bundle's version of the intent's step.
struct IntendedRecord {
  BundleId bundle;
  int64_t record = 0;
  bool operator==(const IntendedRecord&) const = default;
};

// The hyper-parameters of one parameter group. What the optimizer's kind does not name in its
// formula, it ignores.
struct GroupIntent {
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double momentum = 0;  // From 0 to below 1; dampening likewise.
  double dampening = 0;
  bool nesterov = false;
  bool operator==(const GroupIntent&) const = default;
};

struct Intent {
  int64_t step = 0;  // > 0: the step that its bundles are committed at.
  // Hyper-parameters of the first parameter group, with momentum, dampening and nesterov below.
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double gradient_scale = 1;  // The clip coefficient by the loss scale: from 0 to 1.
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double momentum = 0;  // From 0 to below 1.
  double dampening = 0;
  bool nesterov = false;
  std::vector<GroupIntent> more_groups = {};  // By group, of tensors whose group is 1, 2, ...
  // Seed of the stochastic rounding of 8-bit moments; the tensor's index is added to it. 0 rounds
  // to nearest.
  uint64_t rounding_seed = 0;
  uint64_t kernel_version = kUpdateKernelVersion;
  bool skip = false;
  std::vector<TensorIntent> tensors;  // In the order of the space's layout.
  // Bundles that were updated on DEVICE before the intent, ascending.
  std::vector<IntendedRecord> on_device = {};
  bool operator==(const Intent&) const = default;

  // The hyper-parameters of a group that the intent has.
  GroupIntent group(int index) const {
    if (index > 0) return more_groups[index - 1];
    return {learning_rate, beta1, beta2, epsilon, weight_decay, momentum, dampening, nesterov};
  }
};

// Packs the word in the segment's header, {step:63, slot:1} of the latest complete intent. It is 0
// before the first.
constexpr uint64_t PackIntentWord(int64_t step, int slot) {
  return static_cast<uint64_t>(step) << 1 | static_cast<uint64_t>(slot);
}

// Packs a tensor's word: has_gradient in bit 0, decayed in bit 1, the group in bits 2 to 7 and the
// step above, without the trust ratio.
uint64_t PackTensorIntent(const TensorIntent& tensor);
TensorIntent UnpackTensorIntent(uint64_t word);

// Reads the intent that `word` names in `slots`, the first of two of a space. Each word is read
// once. Returns no value if no intent was recorded, if the slot is another step's or was rewritten
// meanwhile (`word` is then old: read it again), or if it holds what no honest client writes.
std::optional<Intent> TryReadIntent(const std::atomic<uint64_t>& word, const IntentShm* slots,
                                    int64_t num_tensors, int64_t num_bundles);

// Returns the step and record of the bundle's valid version, by its commit word and the latest
// intent. They are the intent's if it names a record of the bundle and the commit word is below its
// step, else the commit word's. A version that is still below the intent's step is to be updated
// from its gradient, wherever that is. While the client lives, read the intent first; the answer
// holds if neither word has changed after the record was read.
CommitWord ValidVersion(const CommitWord& committed, const std::optional<Intent>& intent,
                        BundleId bundle);

}  // namespace gemini
