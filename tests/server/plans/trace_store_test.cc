// SPDX-License-Identifier: Apache-2.0
#include "server/plans/trace_store.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/plan/trace_wire.h"
#include "server/plans/state_file.h"
#include "tests/server/traces.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

class TraceStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/traces-XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  static TraceKey KeyOf(const std::string& space, const Trace& trace) {
    return {space, trace.phase, TensorsHash(trace.tensors)};
  }
  static void Keep(TraceStore& store, const std::string& space, const Trace& trace) {
    store.Keep(KeyOf(space, trace), EncodeTrace(trace));
  }
  static bool Finds(TraceStore& store, const std::string& space, const Trace& trace) {
    const std::string* found = store.Find(KeyOf(space, trace));
    return found != nullptr && *found == EncodeTrace(trace);
  }
  int64_t NumFiles() const {
    const std::filesystem::directory_iterator files(directory_);
    return std::distance(begin(files), end(files));
  }
  std::string directory_;
};

TEST_F(TraceStoreTest, TheLatestOfAKeyIsFoundAndTheLatestOfAPhaseByNoHash) {
  TraceStore store("", 1 << 20);
  Keep(store, "a", StepTrace(3, 4096));
  Keep(store, "b", StepTrace(4, 4096));
  Trace changed = StepTrace(3, 4096);
  changed.operators[0].compute_ns = 99;
  Keep(store, "a", changed);
  EXPECT_TRUE(Finds(store, "a", changed));
  EXPECT_FALSE(Finds(store, "a", StepTrace(3, 4096)));
  EXPECT_TRUE(Finds(store, "b", StepTrace(4, 4096)));
  Keep(store, "a", StepTrace(5, 4096));
  EXPECT_EQ(*store.Find({"a", "train", 0}), EncodeTrace(StepTrace(5, 4096)));
  EXPECT_EQ(store.Find({"a", "eval", 0}), nullptr);
}

TEST_F(TraceStoreTest, TheLeastRecentlyUsedGoesWhenTheBoundIsReachedAndItsFileToo) {
  const int64_t size = static_cast<int64_t>(EncodeTrace(StepTrace(8, 4096)).size());
  TraceStore store(directory_, 3 * size);
  for (const std::string space : {"a", "b", "c"}) Keep(store, space, StepTrace(8, 4096));
  EXPECT_TRUE(Finds(store, "a", StepTrace(8, 4096)));  // Used: "b" is the oldest now.
  Keep(store, "d", StepTrace(8, 4096));
  EXPECT_FALSE(Finds(store, "b", StepTrace(8, 4096)));
  for (const std::string space : {"a", "c", "d"}) {
    EXPECT_TRUE(Finds(store, space, StepTrace(8, 4096))) << space;
  }
  EXPECT_EQ(store.kept_bytes(), 3 * size);
  EXPECT_EQ(NumFiles(), 3);
}

TEST_F(TraceStoreTest, WhatIsInTheDirectoryIsThereAgain) {
  {
    TraceStore store(directory_, 1 << 20);
    Keep(store, "a", StepTrace(3, 4096));
    Keep(store, "strange/../name\n", StepTrace(4, 4096, "eval"));
  }
  EXPECT_EQ(NumFiles(), 2);
  TraceStore store(directory_, 1 << 20);
  EXPECT_TRUE(Finds(store, "a", StepTrace(3, 4096)));
  EXPECT_TRUE(Finds(store, "strange/../name\n", StepTrace(4, 4096, "eval")));
}

// Property: a file with a byte changed anywhere is found as it was, or not at all.
TEST_F(TraceStoreTest, ADamagedFileIsLeftOut) {
  const Trace trace = StepTrace(3, 4096);
  { TraceStore(directory_, 1 << 20).Keep(KeyOf("a", trace), EncodeTrace(trace)); }
  const std::string name = std::filesystem::directory_iterator(directory_)->path().filename();
  const std::string good = *ReadStateFile(directory_, name, 1 << 20);
  int left_out = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    ASSERT_OK(WriteStateFile(directory_, name, bytes));
    TraceStore store(directory_, 1 << 20);
    const std::string* found = store.Find(KeyOf("a", trace));
    if (found == nullptr) {
      ++left_out;
    } else {
      ASSERT_EQ(*found, EncodeTrace(trace)) << "byte " << i;  // Padding, or the file's own frame.
    }
  }
  EXPECT_GT(left_out, static_cast<int>(EncodeTrace(trace).size()));
  ASSERT_OK(WriteStateFile(directory_, name, good.substr(0, good.size() / 2)));
  TraceStore cut(directory_, 1 << 20);
  EXPECT_EQ(cut.Find(KeyOf("a", trace)), nullptr);
}

TEST_F(TraceStoreTest, WithoutItsDirectoryItKeepsInMemory) {
  TraceStore store(directory_, 1 << 20);
  std::filesystem::remove_all(directory_);
  Keep(store, "a", StepTrace(3, 4096));
  EXPECT_TRUE(Finds(store, "a", StepTrace(3, 4096)));
}

// A client that has many traces kept evicts its own space's, and nobody else's.
TEST_F(TraceStoreTest, WhoKeepsMostGivesWay) {
  const Trace trace = StepTrace(8, 4096);
  const int64_t size = static_cast<int64_t>(EncodeTrace(trace).size());
  TraceStore store(directory_, 8 * size);
  Keep(store, "modest", trace);
  for (int i = 0; i < 40; ++i) {
    Trace another = trace;
    another.phase = absl::StrFormat("%05d", i);  // As long as "train".
    Keep(store, "greedy", another);
  }
  EXPECT_TRUE(Finds(store, "modest", trace));
  EXPECT_EQ(store.kept_bytes(), 8 * size);
  EXPECT_EQ(NumFiles(), 8);
  // Its own oldest went: the newest are there.
  Trace last = trace;
  last.phase = "00033";
  EXPECT_TRUE(Finds(store, "greedy", last));
  last.phase = "00032";
  EXPECT_FALSE(Finds(store, "greedy", last));
}

// Small ones cost memory, files and time at the start, whatever their bytes.
TEST_F(TraceStoreTest, TheNumberOfTracesIsBoundedToo) {
  TraceStore store("", int64_t{1} << 40);
  for (int64_t i = 0; i < kMaxKeptTraces + 100; ++i) {
    store.Keep({absl::StrCat("space-", i % 7), absl::StrCat(i), 1}, "small");
  }
  EXPECT_EQ(store.num_traces(), kMaxKeptTraces);
  EXPECT_NE(store.Find({absl::StrCat("space-", (kMaxKeptTraces + 99) % 7),
                        absl::StrCat(kMaxKeptTraces + 99), 1}),
            nullptr);
}

}  // namespace
}  // namespace gemini::server
