// SPDX-License-Identifier: Apache-2.0
#include "client/host/commit_writer.h"

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

constexpr int64_t kBundles = 3;
constexpr int64_t kRecords = 2 * kBundles + kSpareRecords;

CommitRecord RecordOf(uint64_t value) {
  CommitRecord record;
  record.fill(value);
  return record;
}

class CommitWriterTest : public ::testing::Test {
 protected:
  // What a reader of the segment sees of the bundle.
  CommitRecord Read(int64_t bundle, int64_t step) {
    const absl::StatusOr<CommitWord> word = UnpackCommitWord(words_[bundle].load(), kRecords);
    EXPECT_OK(word);
    EXPECT_EQ(word->step, step);
    CommitRecord record;
    for (int kind = 0; kind < kNumChunkKinds; ++kind) {
      record[kind] = records_[word->record].slots[kind].load();
    }
    return record;
  }

  std::unique_ptr<std::atomic<uint64_t>[]> words_ { new std::atomic<uint64_t>[kBundles] {} };
  std::unique_ptr<CommitRecordShm[]> records_{new CommitRecordShm[kRecords]{}};
  CommitWriter writer_{words_.get(), records_.get(), kBundles, kRecords};
};

TEST_F(CommitWriterTest, NothingIsCommittedAtFirst) {
  EXPECT_EQ(writer_.step(BundleId(0)), -1);
  EXPECT_EQ(words_[0], 0);
}

TEST_F(CommitWriterTest, TheWordNamesACompleteRecord) {
  writer_.Commit(BundleId(1), 0, RecordOf(7));
  EXPECT_EQ(Read(1, 0), RecordOf(7));
  writer_.Commit(BundleId(1), 4, RecordOf(9));
  EXPECT_EQ(Read(1, 4), RecordOf(9));
  EXPECT_EQ(writer_.step(BundleId(1)), 4);
  EXPECT_EQ(writer_.record(BundleId(1)), RecordOf(9));
  EXPECT_EQ(words_[0], 0);
}

TEST_F(CommitWriterTest, ARecordIsNotRewrittenWhileAWordNamesIt) {
  writer_.Commit(BundleId(0), 1, RecordOf(1));
  for (int64_t step = 0; step < 3 * kRecords; ++step) {
    writer_.Commit(BundleId(2), step, RecordOf(100 + step));
    ASSERT_EQ(Read(0, 1), RecordOf(1)) << step;
  }
}

TEST_F(CommitWriterTest, APreparedRecordIsCompleteAndUnnamedUntilItIsCommitted) {
  writer_.Commit(BundleId(0), 1, RecordOf(1));
  const int64_t index = writer_.Prepare(RecordOf(2));
  EXPECT_EQ(Read(0, 1), RecordOf(1));
  EXPECT_EQ(writer_.record(BundleId(0)), RecordOf(1));
  // However many others come and go meanwhile.
  for (int64_t step = 0; step < 3 * kRecords; ++step) {
    writer_.Commit(BundleId(2), step, RecordOf(100 + step));
    for (const auto& slot : records_[index].slots) ASSERT_EQ(slot, 2) << step;
  }
  writer_.CommitPrepared(BundleId(0), 2, index, RecordOf(2));
  EXPECT_EQ(Read(0, 2), RecordOf(2));
  EXPECT_EQ(writer_.record(BundleId(0)), RecordOf(2));
}

TEST_F(CommitWriterTest, EveryBundleMayHaveOnePrepared) {
  for (int round = 0; round < 100; ++round) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < kBundles; ++i) indices.push_back(writer_.Prepare(RecordOf(round)));
    for (int64_t i = 0; i < kBundles; ++i) {
      writer_.CommitPrepared(BundleId(i), round, indices[i], RecordOf(round));
      EXPECT_EQ(Read(i, round), RecordOf(round));
    }
  }
}

TEST_F(CommitWriterTest, AReaderAtAnyMomentFindsAWholeVersion) {
  constexpr int64_t kVersions = 2'000;  // Different ones: the two threads really run at once.
  std::atomic<int64_t> versions_read{0};
  std::atomic<bool> torn{false};
  std::thread reader([&] {
    int64_t last_step = -1;
    while (versions_read < kVersions && !torn) {
      const uint64_t word = words_[0].load(std::memory_order_acquire);
      if (word == 0) continue;
      const CommitWord unpacked = *UnpackCommitWord(word, kRecords);
      CommitRecord record;
      for (int kind = 0; kind < kNumChunkKinds; ++kind) {
        record[kind] = records_[unpacked.record].slots[kind].load(std::memory_order_acquire);
      }
      // If the word still stands, the record was its own the whole time.
      if (words_[0].load(std::memory_order_relaxed) != word) continue;
      if (record != RecordOf(static_cast<uint64_t>(unpacked.step))) torn = true;
      if (unpacked.step != last_step) ++versions_read;
      last_step = unpacked.step;
    }
  });
  for (int64_t step = 0; versions_read < kVersions && !torn; ++step) {
    writer_.Commit(BundleId(0), step, RecordOf(static_cast<uint64_t>(step)));
  }
  reader.join();
  EXPECT_FALSE(torn);
}

TEST_F(CommitWriterTest, StepsNeverGoBack) {
  writer_.Commit(BundleId(0), 5, RecordOf(1));
  writer_.Commit(BundleId(0), 5, RecordOf(2));  // A move.
  EXPECT_DEATH(writer_.Commit(BundleId(0), 4, RecordOf(3)), "broken invariant");
}

}  // namespace
}  // namespace gemini::client
