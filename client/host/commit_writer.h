// SPDX-License-Identifier: Apache-2.0
// Writes the commit words and records of a space (gemini/shm/commit_shm.h), as their only writer.
// Thread: one caller at a time; the caller locks. Readers in other processes need no lock.
// Rule:   a record is complete before a word names it, and is not rewritten while any word does,
//         nor between Prepare and CommitPrepared. The records that were given up longest ago are
//         reused first, which gives a slow reader time.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "gemini/ids.h"
#include "gemini/shm/commit_shm.h"
#include "gemini/shm/space_shm.h"

namespace gemini::client {

class CommitWriter {
 public:
  // `words` has num_bundles entries and `records` num_records, all zero, in the client segment;
  // they outlive this. num_records > num_bundles.
  CommitWriter(std::atomic<uint64_t>* words, CommitRecordShm* records, int64_t num_bundles,
               int64_t num_records);
  CommitWriter(const CommitWriter&) = delete;
  CommitWriter& operator=(const CommitWriter&) = delete;

  // Makes `record` the valid version of the bundle at `step`, which is not below step(). All bytes
  // that it names are complete.
  void Commit(BundleId bundle, int64_t step, const CommitRecord& record);

  // Do the same in two parts, so that an intent can name the record in between. Prepare completes a
  // record that no word names yet, and returns its index; CommitPrepared makes the word name it. At
  // most one record of a bundle is prepared at a time.
  int64_t Prepare(const CommitRecord& record);
  void CommitPrepared(BundleId bundle, int64_t step, int64_t index, const CommitRecord& record);

  // Returns the committed step, or -1 if nothing is committed.
  int64_t step(BundleId bundle) const { return current_[bundle.value()].step; }
  // Returns the record of the valid version, which is all zeros if nothing is committed.
  const CommitRecord& record(BundleId bundle) const { return current_[bundle.value()].record; }

 private:
  // What was written, kept here because others may scribble on the segment.
  struct Current {
    int64_t step = -1;
    int64_t index = -1;  // Of the record.
    CommitRecord record = {};
  };

  std::atomic<uint64_t>* const words_;
  CommitRecordShm* const records_;
  std::vector<Current> current_;  // By BundleId.
  std::deque<int64_t> free_records_;
};

}  // namespace gemini::client
