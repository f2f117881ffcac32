// SPDX-License-Identifier: Apache-2.0
// What becomes of the memory of tensors that are freed while a session is open.
#include "client/torch/device/counting_allocator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "ATen/ops/ones.h"
#include "client/session/session.h"
#include "tests/client/torch/training_fixture.h"

namespace gemini::client::hooks {
namespace {

constexpr int64_t kLarge = 64 * kMiB;

class CountingAllocatorTest : public TrainingTest {
 protected:
  void SetUp() override {
    TrainingOptions options = SmallOptions();
    options.device_memory = 2 * kLarge;
    ASSERT_NO_FATAL_FAILURE(Open(options));
  }
  // Makes a tensor, writes to all of it and frees it.
  static void UseOnce(int64_t size_bytes) { at::ones({size_bytes / 4}); }
  static int64_t PageFaults() {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  }
  static int64_t ResidentBytes() {
    int64_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  }
};

TEST_F(CountingAllocatorTest, ABlockOfASizeThatWasFreedHasItsPages) {
  UseOnce(kLarge);
  const int64_t before = PageFaults();
  for (int i = 0; i < 3; ++i) UseOnce(kLarge);
  EXPECT_LT(PageFaults() - before, kLarge / kPageBytes / 8);
}

TEST_F(CountingAllocatorTest, WhatIsKeptAndWhatIsInUseTakeNoMoreThanWasOnceInUse) {
  UseOnce(kMiB);
  const int64_t before_bytes = ResidentBytes();
  for (int64_t size_bytes = kLarge; size_bytes > kLarge / 2; size_bytes -= 8 * kMiB) {
    UseOnce(size_bytes);
  }
  EXPECT_LE(ResidentBytes() - before_bytes, kLarge + 8 * kMiB);
  EXPECT_EQ(session_->session().device_budget().non_model_bytes(), 0);
}

TEST_F(CountingAllocatorTest, TheEndOfASessionFreesWhatIsKeptThoughATensorLivesOn) {
  const at::Tensor lives_on = at::ones({kMiB / 4});
  const int64_t before_bytes = ResidentBytes();
  UseOnce(kLarge);
  EXPECT_GE(ResidentBytes() - before_bytes, kLarge / 2);
  ASSERT_OK(session_->Close());
  EXPECT_LE(ResidentBytes() - before_bytes, kLarge / 2);
}

TEST_F(CountingAllocatorTest, WhatIsKeptTakesNoRoomOfTheBudget) {
  UseOnce(kMiB);
  const int64_t before_bytes = ResidentBytes();
  UseOnce(kLarge);
  const at::Tensor all_but_a_little = at::ones({(2 * kLarge - kMiB) / 4});
  EXPECT_OK(session_->status());
  EXPECT_LE(ResidentBytes() - before_bytes, 2 * kLarge);
  EXPECT_EQ(GetAllocationStats().refused, 0);
}

}  // namespace
}  // namespace gemini::client::hooks
