// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/peer_memory.h"

#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "gemini/layout.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/mutex.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {
namespace {

// Twice what 256 sessions with 64 spaces each have. Sessions that hung up may add to that: then
// spaces are refused, as where descriptors run out (65,536 under systemd, three a space).
constexpr int kMaxRanges = 1 << 15;

// `end` is 0 while `begin` is not valid: a handler may look at any moment.
struct Range {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

// Never destroyed, for a signal may come at the process's end.
constinit std::array<Range, kMaxRanges> ranges;
constinit std::atomic<int> num_ranges = 0;  // Those behind were never used.

struct FreeRanges {
  Mutex mutex;
  std::vector<int> free ABSL_GUARDED_BY(mutex);
};
FreeRanges& Unused() {
  static FreeRanges* const unused = new FreeRanges;
  return *unused;
}

int TakeRange() {
  FreeRanges& unused = Unused();
  MutexLock lock(unused.mutex);
  if (unused.free.empty()) {
    const int next = num_ranges.load(std::memory_order_relaxed);
    if (next < kMaxRanges) num_ranges.store(next + 1, std::memory_order_release);
    return next;
  }
  const int range = unused.free.back();
  unused.free.pop_back();
  return range;
}

bool IsOfAPeer(uintptr_t address) {
  const int count = num_ranges.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    if (address < ranges[i].end.load(std::memory_order_acquire) &&
        address >= ranges[i].begin.load(std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

// Uses nothing but lock-free loads and system calls.
void HandleSigbus(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code == BUS_ADRERR && IsOfAPeer(address)) {
    // Read-only and private: the kernel charges nobody for it, so it never lacks memory for that.
    void* const page = reinterpret_cast<void*>(address / kPageBytes * kPageBytes);
    if (::mmap(page, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        MAP_FAILED) {
      errno = saved_errno;
      return;
    }
  }
  // The instruction is run again, and ends the process. A signal that was sent is sent again.
  ::signal(SIGBUS, SIG_DFL);
  const bool is_own = info->si_code == BUS_ADRALN || info->si_code == BUS_ADRERR ||
                      info->si_code == BUS_OBJERR || info->si_code == BUS_MCEERR_AR;
  if (!is_own) ::raise(SIGBUS);
}

}  // namespace

absl::Status PeerMemory::Survive() {
  struct sigaction action = {};
  action.sa_sigaction = &HandleSigbus;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(SIGBUS, &action, nullptr) != 0) return ErrnoStatus(errno, "handle SIGBUS");
  return absl::OkStatus();
}

absl::StatusOr<PeerMemory> PeerMemory::Map(int fd, int64_t size_bytes) {
  PeerMemory made;
  GEMINI_ASSIGN_OR_RETURN(made.memory_,
                          MappedMemory::Map(fd, size_bytes, MappedMemory::Access::kReadOnly));
  const int range = TakeRange();
  if (range == kMaxRanges) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxRanges, " mappings of peers' memory are there, the limit: close some"));
  }
  made.range_ = range;
  const auto begin = reinterpret_cast<uintptr_t>(made.memory_.data());
  ranges[range].begin.store(begin, std::memory_order_relaxed);
  ranges[range].end.store(begin + size_bytes, std::memory_order_release);
  return made;
}

PeerMemory::~PeerMemory() {
  if (range_ == kNone) return;
  // Before the addresses are anybody else's.
  ranges[range_].end.store(0, std::memory_order_release);
  FreeRanges& unused = Unused();
  MutexLock lock(unused.mutex);
  unused.free.push_back(range_);
}

}  // namespace gemini::server
