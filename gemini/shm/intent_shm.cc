// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/intent_shm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace gemini {
namespace {

// As kCommitStepBits: a step that no commit word can hold is none.
constexpr uint64_t kMaxStep = (uint64_t{1} << 40) - 1;

bool InRange(const Intent& intent) {
  const auto fraction = [](double value) { return value >= 0 && value < 1; };
  const auto in_range = [&](const GroupIntent& group) {
    return std::isfinite(group.learning_rate) && fraction(group.beta1) && fraction(group.beta2) &&
           std::isfinite(group.epsilon) && group.epsilon >= 0 &&
           std::isfinite(group.weight_decay) && fraction(group.momentum) &&
           std::isfinite(group.dampening);
  };
  const int num_groups = 1 + static_cast<int>(intent.more_groups.size());
  return in_range(intent.group(0)) && std::ranges::all_of(intent.more_groups, in_range) &&
         intent.gradient_scale >= 0 && intent.gradient_scale <= 1 &&
         std::ranges::all_of(intent.tensors, [&](const TensorIntent& tensor) {
           return tensor.group < num_groups && std::isfinite(tensor.trust_ratio) &&
                  tensor.trust_ratio >= 0;
         });
}

}  // namespace

uint64_t PackTensorIntent(const TensorIntent& tensor) {
  return static_cast<uint64_t>(tensor.step) << 8 | static_cast<uint64_t>(tensor.group) << 2 |
         static_cast<uint64_t>(tensor.decayed) << 1 | static_cast<uint64_t>(tensor.has_gradient);
}

TensorIntent UnpackTensorIntent(uint64_t word) {
  return {.has_gradient = (word & 1) != 0,
          .decayed = (word & 2) != 0,
          .step = static_cast<int64_t>(word >> 8),
          .group = static_cast<int>(word >> 2 & (kMaxParameterGroups - 1))};
}

std::optional<Intent> TryReadIntent(const std::atomic<uint64_t>& word, const IntentShm* slots,
                                    int64_t num_tensors, int64_t num_bundles) {
  const uint64_t named = word.load(std::memory_order_acquire);
  if (named == 0) return std::nullopt;
  const auto* const bytes =
      reinterpret_cast<const std::byte*>(slots) +
      static_cast<int64_t>(named & 1) * IntentSlotBytes(num_tensors, num_bundles);
  const auto& slot = *reinterpret_cast<const IntentShm*>(bytes);
  const auto* const tensor_words =
      reinterpret_cast<const std::atomic<uint64_t>*>(bytes + sizeof(IntentShm));
  const auto real = [](const std::atomic<uint64_t>& from) {
    return std::bit_cast<double>(from.load(std::memory_order_acquire));
  };
  const uint64_t step = slot.step.load(std::memory_order_acquire);
  const uint64_t skip = slot.skip.load(std::memory_order_acquire);
  const uint64_t count = slot.num_tensors.load(std::memory_order_acquire);
  const uint64_t optimizer = slot.optimizer.load(std::memory_order_acquire);
  const uint64_t nesterov = slot.nesterov.load(std::memory_order_acquire);
  const uint64_t num_more_groups = slot.num_more_groups.load(std::memory_order_acquire);
  if (optimizer >= kNumOptimizerKinds || step == 0 || step > kMaxStep || step != named >> 1 ||
      skip > 1 || count != static_cast<uint64_t>(num_tensors) || nesterov > 1 ||
      num_more_groups >= kMaxParameterGroups) {
    return std::nullopt;
  }
  Intent intent;
  intent.step = static_cast<int64_t>(step);
  intent.learning_rate = real(slot.learning_rate);
  intent.beta1 = real(slot.beta1);
  intent.beta2 = real(slot.beta2);
  intent.epsilon = real(slot.epsilon);
  intent.weight_decay = real(slot.weight_decay);
  intent.gradient_scale = real(slot.gradient_scale);
  intent.optimizer = static_cast<OptimizerKind>(optimizer);
  intent.momentum = real(slot.momentum);
  intent.dampening = real(slot.dampening);
  intent.nesterov = nesterov == 1;
  intent.rounding_seed = slot.rounding_seed.load(std::memory_order_acquire);
  intent.kernel_version = slot.kernel_version.load(std::memory_order_acquire);
  intent.skip = skip == 1;
  intent.tensors.reserve(num_tensors);
  for (int64_t i = 0; i < num_tensors; ++i) {
    TensorIntent tensor = UnpackTensorIntent(tensor_words[2 * i].load(std::memory_order_acquire));
    tensor.trust_ratio = real(tensor_words[2 * i + 1]);
    intent.tensors.push_back(tensor);
  }
  const std::atomic<uint64_t>* const bundle_words = tensor_words + 2 * num_tensors;
  const uint64_t num_records = static_cast<uint64_t>(NumCommitRecords(num_bundles));
  for (int64_t i = 0; i < num_bundles; ++i) {
    const uint64_t field = bundle_words[i].load(std::memory_order_acquire);
    if (field == 0) continue;
    if (field > num_records) return std::nullopt;
    intent.on_device.push_back({BundleId(i), static_cast<int64_t>(field) - 1});
  }
  const auto* const groups = reinterpret_cast<const IntentGroupShm*>(bundle_words + num_bundles);
  for (uint64_t i = 0; i < num_more_groups; ++i) {
    const IntentGroupShm& group = groups[i];
    const uint64_t has_nesterov = group.nesterov.load(std::memory_order_acquire);
    if (has_nesterov > 1) return std::nullopt;
    intent.more_groups.push_back({.learning_rate = real(group.learning_rate),
                                  .beta1 = real(group.beta1),
                                  .beta2 = real(group.beta2),
                                  .epsilon = real(group.epsilon),
                                  .weight_decay = real(group.weight_decay),
                                  .momentum = real(group.momentum),
                                  .dampening = real(group.dampening),
                                  .nesterov = has_nesterov == 1});
  }
  // The slot is rewritten only after the word named the other one: who acquired a later intent's
  // word of the slot sees that here. (Not a fence: ThreadSanitizer knows none.)
  if (word.load(std::memory_order_relaxed) != named || !InRange(intent)) return std::nullopt;
  return intent;
}

CommitWord ValidVersion(const CommitWord& committed, const std::optional<Intent>& intent,
                        BundleId bundle) {
  if (!intent.has_value() || committed.step >= intent->step) return committed;
  const auto named =
      std::ranges::lower_bound(intent->on_device, bundle, {}, &IntendedRecord::bundle);
  if (named == intent->on_device.end() || named->bundle != bundle) return committed;
  return {.step = intent->step, .record = named->record};
}

}  // namespace gemini
