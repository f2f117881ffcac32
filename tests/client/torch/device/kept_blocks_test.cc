// SPDX-License-Identifier: Apache-2.0
#include "client/torch/device/kept_blocks.h"

#include <cstdlib>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::client::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// In the order in which they were freed.
std::vector<void*>& Freed() {
  static std::vector<void*> freed;
  return freed;
}

class KeptBlocksTest : public ::testing::Test {
 protected:
  KeptBlocksTest() { Freed().clear(); }
  ~KeptBlocksTest() override {
    for (void* const block : made_) std::free(block);
  }
  void* Make(int64_t size_bytes) {
    return made_.emplace_back(std::malloc(static_cast<size_t>(size_bytes)));
  }

  std::vector<void*> made_;
  KeptBlocks kept_{[](void* block) { Freed().push_back(block); }};
};

TEST_F(KeptBlocksTest, ABlockIsTakenBySizeAndTheOneThatWasKeptLastFirst) {
  void* const first = Make(1024);
  void* const second = Make(1024);
  void* const larger = Make(2048);
  EXPECT_EQ(kept_.Take(1024), nullptr);
  kept_.Keep(first, 1024);
  kept_.Keep(larger, 2048);
  kept_.Keep(second, 1024);
  EXPECT_EQ(kept_.Take(1023), nullptr);
  EXPECT_EQ(kept_.Take(1025), nullptr);
  EXPECT_EQ(kept_.Take(1024), second);
  EXPECT_EQ(kept_.Take(1024), first);
  EXPECT_EQ(kept_.Take(1024), nullptr);
  EXPECT_EQ(kept_.Take(2048), larger);
  EXPECT_THAT(Freed(), IsEmpty());
}

TEST_F(KeptBlocksTest, TrimmingFreesThoseThatWereKeptForLongestAndNoMoreThanItMust) {
  void* const first = Make(512);
  void* const second = Make(4096);
  void* const third = Make(512);
  kept_.Keep(first, 512);
  kept_.Keep(second, 4096);
  kept_.Keep(third, 512);
  EXPECT_FALSE(kept_.TrimTo(5120));
  EXPECT_TRUE(kept_.TrimTo(4700));
  EXPECT_THAT(Freed(), ElementsAre(first));
  EXPECT_TRUE(kept_.TrimTo(512));
  EXPECT_THAT(Freed(), ElementsAre(first, second));
  EXPECT_EQ(kept_.Take(512), third);
  EXPECT_FALSE(kept_.TrimTo(0));
}

TEST_F(KeptBlocksTest, ItsEndFreesWhatIsKept) {
  void* const block = Make(1024);
  {
    KeptBlocks kept([](void* freed) { Freed().push_back(freed); });
    kept.Keep(block, 1024);
  }
  EXPECT_THAT(Freed(), ElementsAre(block));
}

// Property: every block is in use, kept or freed, and is freed once.
TEST_F(KeptBlocksTest, NoBlockIsLostOrGivenTwice) {
  std::mt19937_64 random(/*seed=*/3);
  std::vector<std::pair<void*, int64_t>> in_use;
  for (int step = 0; step < 5'000; ++step) {
    const int64_t size_bytes = 256 * static_cast<int64_t>(1 + random() % 5);
    if (random() % 2 == 0) {
      void* const taken = kept_.Take(size_bytes);
      in_use.emplace_back(taken != nullptr ? taken : Make(size_bytes), size_bytes);
    } else if (!in_use.empty()) {
      std::swap(in_use[random() % in_use.size()], in_use.back());
      kept_.Keep(in_use.back().first, in_use.back().second);
      in_use.pop_back();
    }
    if (random() % 16 == 0) kept_.TrimTo(static_cast<int64_t>(random() % 8'192));
  }
  kept_.TrimTo(0);
  std::vector<void*> all = Freed();
  for (const auto& [block, size_bytes] : in_use) all.push_back(block);
  EXPECT_THAT(all, ::testing::UnorderedElementsAreArray(made_));
}

}  // namespace
}  // namespace gemini::client::hooks
