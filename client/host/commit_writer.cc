// SPDX-License-Identifier: Apache-2.0
#include "client/host/commit_writer.h"

#include "gemini/system/check.h"

namespace gemini::client {

CommitWriter::CommitWriter(std::atomic<uint64_t>* words, CommitRecordShm* records,
                           int64_t num_bundles, int64_t num_records)
    : words_(words), records_(records), current_(num_bundles) {
  GEMINI_CHECK(num_records > num_bundles);
  for (int64_t record = 0; record < num_records; ++record) free_records_.push_back(record);
}

void CommitWriter::Commit(BundleId bundle, int64_t step, const CommitRecord& record) {
  CommitPrepared(bundle, step, Prepare(record), record);
}

int64_t CommitWriter::Prepare(const CommitRecord& record) {
  // A bundle has two at most, one that its word names and one prepared: there are more.
  GEMINI_CHECK(!free_records_.empty());
  const int64_t index = free_records_.front();
  free_records_.pop_front();
  for (int kind = 0; kind < kNumChunkKinds; ++kind) {
    // Release: a reader that sees a new slot in an old record also sees that no word names it now.
    records_[index].slots[kind].store(record[kind], std::memory_order_release);
  }
  return index;
}

void CommitWriter::CommitPrepared(BundleId bundle, int64_t step, int64_t index,
                                  const CommitRecord& record) {
  Current& current = current_[bundle.value()];
  GEMINI_CHECK(step >= current.step && step >= 0 && step < int64_t{1} << kCommitStepBits);
  words_[bundle.value()].store(PackCommitWord({.step = step, .record = index}),
                               std::memory_order_release);
  if (current.index >= 0) free_records_.push_back(current.index);
  current = {.step = step, .index = index, .record = record};
}

}  // namespace gemini::client
