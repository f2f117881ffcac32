// SPDX-License-Identifier: Apache-2.0
// A pin of a resident range makes no system call and allocates nothing: every operator makes some.
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "tests/client/session_fixture.h"

namespace {
thread_local bool count_allocations = false;
std::atomic<int64_t> allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  if (count_allocations) ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace gemini::client {
namespace {

class ResidencyFastPathTest : public SessionFixture {};

TEST_F(ResidencyFastPathTest, APinOfAResidentRangeMakesNoSystemCallAndAllocatesNothing) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's run time makes system calls of its own";
#endif
  constexpr int64_t kBundles = 8;
  OpenSession(/*device_slots=*/8, /*host_slots=*/10, 0);
  ASSERT_NE(session_, nullptr);
  ChunkStore* store = OpenSpace("space", kBundles, 10, 0);
  ASSERT_NE(store, nullptr);
  std::vector<RangeId> ranges;
  for (int64_t i = 0; i < kBundles; ++i) {
    ASSERT_OK(CommitTag(*store, BundleId(i), ChunkKind::kParam, 0, i));
    ranges.push_back(session_->residency().AddRange(*store, BundleId(i), 1, ChunkKind::kParam));
  }
  std::vector<std::byte*> addresses(kBundles);
  const auto pin_all = [&] {
    const bool ok = session_->residency().Pin(ranges, absl::MakeSpan(addresses)).ok();
    for (const RangeId range : ranges) session_->residency().Unpin(range, /*dirty=*/false);
    return ok;
  };
  ASSERT_TRUE(pin_all());
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  std::thread pinner([&] {
    // From here on the kernel ends the thread at any system call but read, write and exit.
    ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    count_allocations = true;
    bool ok = true;
    for (int round = 0; round < 1000; ++round) ok &= pin_all();
    count_allocations = false;
    const char answer = ok ? 'y' : 'n';
    ::syscall(SYS_write, pipe_ends[1], &answer, 1);
    ::syscall(SYS_exit, 0);
  });
  // Its end is the end of the kernel's thread, however it came.
  pinner.join();
  ::close(pipe_ends[1]);
  char answer = 0;
  EXPECT_EQ(::read(pipe_ends[0], &answer, 1), 1) << "a pin made a system call";
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(allocations, 0);
  ::close(pipe_ends[0]);
}

}  // namespace
}  // namespace gemini::client
