// SPDX-License-Identifier: Apache-2.0
// Writes a space's intents (gemini/shm/intent_shm.h), as their only writer. An intent says what an
// update will do, so that it can be repeated if this process dies.
// Thread: one caller at a time; the caller locks. Readers in other processes need no lock.
// Rule:   the caller records the next intent only when every bundle is committed at the one before.
#pragma once
#include <atomic>
#include <cstdint>

#include "gemini/shm/intent_shm.h"

namespace gemini::client {

class IntentWriter {
 public:
  // `word` and `slots` are zeros in the client segment; they outlive this.
  IntentWriter(std::atomic<uint64_t>* word, IntentShm* slots, int64_t num_tensors,
               int64_t num_bundles)
      : word_(word), slots_(slots), num_tensors_(num_tensors), num_bundles_(num_bundles) {}
  IntentWriter(const IntentWriter&) = delete;
  IntentWriter& operator=(const IntentWriter&) = delete;

  int64_t num_tensors() const { return num_tensors_; }
  // Writes the intent into the slot that the word does not name, then makes the word name it. The
  // intent has num_tensors() tensors and step > 0, and the commit records that its on_device names
  // are complete.
  void Record(const Intent& intent);

 private:
  std::atomic<uint64_t>* const word_;
  IntentShm* const slots_;
  const int64_t num_tensors_;
  const int64_t num_bundles_;
  int next_slot_ = 0;  // Kept here because others may scribble on the segment.
};

}  // namespace gemini::client
