// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/worker_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "gemini/system/check.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gemini {
namespace {

// Some 20 us: what lies between the updates of two bundles in HOST, and about what a wake-up costs.
constexpr int kSpins = 1000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns once `value` is not `from`. What wakes it up is changed with the default ordering: a
// notification looks for sleepers first, and that must not come before the change.
void AwaitChange(const std::atomic<int>& value, int from) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != from) return;
    Pause();
  }
  value.wait(from, std::memory_order_acquire);
}

// A processor that is gone, or taken from the process meanwhile, is no reason not to work.
void Bind(std::thread& thread, const WorkerTeam::Processors& processors) {
  if (processors.empty()) return;
  const int most = *std::ranges::max_element(processors);
  cpu_set_t* const set = CPU_ALLOC(most + 1);
  if (set == nullptr) return;
  const size_t size = CPU_ALLOC_SIZE(most + 1);
  CPU_ZERO_S(size, set);
  for (const int processor : processors) CPU_SET_S(processor, size, set);
  (void)::pthread_setaffinity_np(thread.native_handle(), size, set);
  CPU_FREE(set);
}

}  // namespace

WorkerTeam::WorkerTeam(int num_threads, const std::vector<Processors>& places) {
  GEMINI_CHECK(num_threads >= 1);
  helpers_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) {
    try {
      helpers_.emplace_back([this] { Help(); });
    } catch (const std::system_error&) {
      return;  // No more threads to be had.
    }
    ::pthread_setname_np(helpers_.back().native_handle(),
                         ("gemini-team-" + std::to_string(i)).c_str());
    if (i < static_cast<int>(places.size())) Bind(helpers_.back(), places[i]);
  }
}

WorkerTeam::~WorkerTeam() {
  untaken_.store(-1);
  untaken_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerTeam::Work::Do(int index) const {
  const int64_t begin = index * part_size;
  part(begin, std::min(begin + part_size, count));
}

void WorkerTeam::Run(int64_t count, int64_t part_size,
                     absl::FunctionRef<void(int64_t begin, int64_t end)> work) {
  const auto num_parts = static_cast<int>((count + part_size - 1) / part_size);
  const Work parts = {work, count, part_size, num_parts};
  if (helpers_.empty() || num_parts <= 1 || has_caller_.exchange(true, std::memory_order_acquire)) {
    for (int index = 0; index < num_parts; ++index) parts.Do(index);
    return;
  }
  work_ = &parts;
  unfinished_.store(num_parts, std::memory_order_relaxed);
  untaken_.store(num_parts);
  untaken_.notify_all();
  for (int index; TakePart(index);) FinishPart(index);
  for (int left; (left = unfinished_.load(std::memory_order_acquire)) > 0;) {
    AwaitChange(unfinished_, left);
  }
  has_caller_.store(false, std::memory_order_release);
}

void WorkerTeam::Help() {
  for (;;) {
    for (int index; TakePart(index);) FinishPart(index);
    if (untaken_.load(std::memory_order_relaxed) < 0) return;
    AwaitChange(untaken_, 0);
  }
}

// A helper that comes late takes a part of whatever Run is under way then, or none.
bool WorkerTeam::TakePart(int& index) {
  int untaken = untaken_.load(std::memory_order_relaxed);
  while (untaken > 0) {
    if (untaken_.compare_exchange_weak(untaken, untaken - 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      index = work_->num_parts - untaken;
      return true;
    }
  }
  return false;
}

void WorkerTeam::FinishPart(int index) {
  work_->Do(index);
  // The last one: Run may return from here on.
  if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_all();
}

}  // namespace gemini
