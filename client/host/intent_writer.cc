// SPDX-License-Identifier: Apache-2.0
#include "client/host/intent_writer.h"

#include <bit>
#include <cstddef>

#include "gemini/system/check.h"

namespace gemini::client {

void IntentWriter::Record(const Intent& intent) {
  GEMINI_CHECK(intent.step > 0 && static_cast<int64_t>(intent.tensors.size()) == num_tensors_ &&
               intent.more_groups.size() < kMaxParameterGroups);
  auto* const bytes = reinterpret_cast<std::byte*>(slots_) +
                      next_slot_ * IntentSlotBytes(num_tensors_, num_bundles_);
  auto& slot = *reinterpret_cast<IntentShm*>(bytes);
  auto* const tensor_words = reinterpret_cast<std::atomic<uint64_t>*>(bytes + sizeof(IntentShm));
  // Release: a reader that sees a word of this intent also sees that the intent word names the
  // other slot.
  const auto put = [](std::atomic<uint64_t>& to, uint64_t value) {
    to.store(value, std::memory_order_release);
  };
  put(slot.step, static_cast<uint64_t>(intent.step));
  // The first group's words stand in the head and have the names of the others'.
  const auto put_group = [&](auto& to, const GroupIntent& group) {
    put(to.learning_rate, std::bit_cast<uint64_t>(group.learning_rate));
    put(to.beta1, std::bit_cast<uint64_t>(group.beta1));
    put(to.beta2, std::bit_cast<uint64_t>(group.beta2));
    put(to.epsilon, std::bit_cast<uint64_t>(group.epsilon));
    put(to.weight_decay, std::bit_cast<uint64_t>(group.weight_decay));
    put(to.momentum, std::bit_cast<uint64_t>(group.momentum));
    put(to.dampening, std::bit_cast<uint64_t>(group.dampening));
    put(to.nesterov, group.nesterov ? 1 : 0);
  };
  put_group(slot, intent.group(0));
  put(slot.num_more_groups, intent.more_groups.size());
  put(slot.gradient_scale, std::bit_cast<uint64_t>(intent.gradient_scale));
  put(slot.kernel_version, intent.kernel_version);
  put(slot.skip, intent.skip ? 1 : 0);
  put(slot.num_tensors, static_cast<uint64_t>(num_tensors_));
  put(slot.optimizer, static_cast<uint64_t>(intent.optimizer));
  put(slot.rounding_seed, intent.rounding_seed);
  for (int64_t i = 0; i < num_tensors_; ++i) {
    put(tensor_words[2 * i], PackTensorIntent(intent.tensors[i]));
    put(tensor_words[2 * i + 1], std::bit_cast<uint64_t>(intent.tensors[i].trust_ratio));
  }
  std::atomic<uint64_t>* const bundle_words = tensor_words + 2 * num_tensors_;
  for (int64_t i = 0; i < num_bundles_; ++i) put(bundle_words[i], 0);
  auto* const groups = reinterpret_cast<IntentGroupShm*>(bundle_words + num_bundles_);
  for (size_t i = 0; i < intent.more_groups.size(); ++i) {
    put_group(groups[i], intent.more_groups[i]);
  }
  for (const IntendedRecord& at : intent.on_device) {
    put(bundle_words[at.bundle.value()], static_cast<uint64_t>(at.record) + 1);
  }
  word_->store(PackIntentWord(intent.step, next_slot_), std::memory_order_release);
  next_slot_ = 1 - next_slot_;
}

}  // namespace gemini::client
