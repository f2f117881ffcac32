// SPDX-License-Identifier: Apache-2.0
// A pin of a resident range makes no system call and allocates nothing, and neither does following
// a plan: every operator does both.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <thread>

#include "absl/functional/function_ref.h"
#include "tests/client/plan/planned_job.h"

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

// From here on the kernel ends the thread at any system call but write and exit. Not the strict
// mode, which forbids the clock's instruction as well.
void ForbidSystemCalls() {
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kJump = BPF_JMP | BPF_JEQ | BPF_K,
                     kReturn = BPF_RET | BPF_K;
  std::array<sock_filter, 5> filter = {{{kLoad, 0, 0, offsetof(seccomp_data, nr)},
                                        {kJump, 2, 0, SYS_write},
                                        {kJump, 1, 0, SYS_exit},
                                        {kReturn, 0, 0, SECCOMP_RET_KILL_THREAD},
                                        {kReturn, 0, 0, SECCOMP_RET_ALLOW}}};
  const sock_fprog program = {.len = filter.size(), .filter = filter.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// Runs `work` on a thread that the kernel ends at any system call but write and exit. Returns
// whether it came to its end and found all well; `allocations` counts those of the thread.
bool RunWithoutSystemCalls(absl::FunctionRef<bool()> work) {
  int pipe_ends[2];
  EXPECT_EQ(::pipe(pipe_ends), 0);
  std::thread runner([&] {
    ForbidSystemCalls();
    count_allocations = true;
    const bool ok = work();
    count_allocations = false;
    const char answer = ok ? 'y' : 'n';
    ::syscall(SYS_write, pipe_ends[1], &answer, 1);
    ::syscall(SYS_exit, 0);
  });
  // Its end is the end of the kernel's thread, however it came.
  runner.join();
  ::close(pipe_ends[1]);
  char answer = 0;
  EXPECT_EQ(::read(pipe_ends[0], &answer, 1), 1) << "it made a system call";
  ::close(pipe_ends[0]);
  return answer == 'y';
}

TEST_F(ResidencyFastPathTest, APinOfAResidentRangeMakesNoSystemCallAndAllocatesNothing) {
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
  allocations = 0;
  EXPECT_TRUE(RunWithoutSystemCalls([&] {
    bool ok = true;
    for (int round = 0; round < 1000; ++round) ok &= pin_all();
    return ok;
  }));
  EXPECT_EQ(allocations, 0);
}

// A round whose ranges all stay: what remains is the tracer, the comparison with the plan, and
// pins.
TEST_F(ResidencyFastPathTest, APlannedRoundMakesNoSystemCallAndAllocatesNothing) {
  constexpr int32_t kTensors = 6;
  OpenSession(/*device_slots=*/8, /*host_slots=*/60, 0);
  ASSERT_NE(session_, nullptr);
  LocalPlans plans(kTestChunkBytes);
  PlannedJob job(*session_, std::vector<TracedTensor>(kTensors, {.size_bytes = kTestChunkBytes}),
                 &plans, 60, 0);
  PhaseTracker& phases = job.phases();
  Residency& residency = session_->residency();
  std::vector<TensorUse> uses(2, TensorUse{});
  std::vector<RangeId> ranges(2);
  std::vector<std::byte*> addresses(2);
  const auto run_round = [&] {
    bool ok = true;
    phases.BeginPhase("score");
    for (int32_t i = 0; i < kTensors; ++i) {
      uses[0].tensor = i;
      uses[1].tensor = (i + 1) % kTensors;
      for (size_t u = 0; u < 2; ++u) ranges[u] = job.RangeOf(uses[u]);
      const int64_t op = phases.BeginOperator(uses, /*gradients_enabled=*/false);
      ok &= residency.Pin(ranges, absl::MakeSpan(addresses)).ok();
      for (const RangeId range : ranges) residency.Unpin(range, /*dirty=*/false);
      phases.EndOperator(op);
    }
    phases.EndPhase();
    return ok;
  };
  // One is recorded, three follow its plan, and one that which is made with their times.
  for (int round = 0; round < 5; ++round) ASSERT_TRUE(run_round());
  phases.AwaitPlannedMoves();
  const int64_t planned = phases.stats().planned_rounds;
  allocations = 0;
  EXPECT_TRUE(RunWithoutSystemCalls([&] {
    bool ok = true;
    for (int round = 0; round < 100; ++round) ok &= run_round();
    return ok;
  }));
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(phases.stats().planned_rounds, planned + 100);
}

}  // namespace
}  // namespace gemini::client
