// SPDX-License-Identifier: Apache-2.0
#include "client/copy/copy_engine_host.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/copy/space_timeline.h"
#include "gemini/system/check.h"

namespace gemini::client {
namespace {

// A wake-up costs about 50 us from futex to running thread, the time of copying some 256 KiB; a
// quarter of that keeps the caller's time below the wake-up's.
constexpr int64_t kInlineBytes = 64 * 1024;

// An empty copy may come with null addresses, which memcpy may not.
void CopyBytes(void* destination, const void* source, int64_t size_bytes) {
  if (size_bytes == 0) return;
  if (source == nullptr) {
    std::memset(destination, 0, static_cast<size_t>(size_bytes));
  } else {
    std::memcpy(destination, source, static_cast<size_t>(size_bytes));
  }
}

}  // namespace

CopyEngineHost::CopyEngineHost(std::array<int64_t, 2> bytes_per_second, TimelineShm* timeline)
    : timeline_(timeline) {
  const std::array<const char*, 2> names = {"gemini-fetch", "gemini-evict"};
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    GEMINI_CHECK(bytes_per_second[i] >= 0);
    stream.bytes_per_second = bytes_per_second[i];
    stream.worker = std::thread([this, which = static_cast<CopyStream>(i)] { RunWorker(which); });
    ::pthread_setname_np(stream.worker.native_handle(), names[i]);
  }
}

CopyEngineHost::~CopyEngineHost() {
  for (Stream& stream : streams_) {
    MutexLock lock(stream.mutex);
    stream.stopping = true;
    stream.changed.notify_one();
  }
  for (Stream& stream : streams_) stream.worker.join();
}

CopyEvent CopyEngineHost::Copy(CopyStream which, void* destination, const void* source,
                               int64_t size_bytes, CopyEvent after, CopySubject subject) {
  Stream& stream = streams_[static_cast<size_t>(which)];
  MutexLock lock(stream.mutex);
  const uint64_t sequence = ++stream.enqueued;
  const bool idle = stream.done.load(std::memory_order_acquire) + 1 == sequence;
  if (idle && size_bytes <= kInlineBytes && stream.bytes_per_second == 0 && Done(after)) {
    // The lock keeps a later copy of this stream behind this one.
    const Job job = {destination, source, size_bytes, after, subject, {}};
    Show(which, job, Run(job));
    stream.done.store(sequence, std::memory_order_release);
    stream.done.notify_all();
  } else {
    const Clock::time_point now = stream.bytes_per_second == 0 ? Clock::time_point() : Clock::now();
    stream.queue.push_back({destination, source, size_bytes, after, subject, now});
    if (stream.idle) stream.changed.notify_one();
  }
  return CopyEvent::Behind(static_cast<size_t>(which), sequence);
}

void CopyEngineHost::CopyWithin(void* destination, const void* source, int64_t size_bytes) {
  CopyBytes(destination, source, size_bytes);
}

bool CopyEngineHost::Done(CopyEvent event) const {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].done.load(std::memory_order_acquire) < event.sequences[i]) return false;
  }
  return true;
}

void CopyEngineHost::Wait(CopyEvent event) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const std::atomic<uint64_t>& done = streams_[i].done;
    uint64_t seen;
    while ((seen = done.load(std::memory_order_acquire)) < event.sequences[i]) {
      done.wait(seen, std::memory_order_acquire);
    }
  }
}

CopyEngineHost::Interval CopyEngineHost::Run(const Job& job) const {
  const bool shown = timeline_ != nullptr && job.subject.space >= 0;
  Interval when;
  if (shown) when.begin = Clock::now();
  CopyBytes(job.destination, job.source, job.size_bytes);
  if (shown) when.end = Clock::now();
  return when;
}

void CopyEngineHost::Show(CopyStream which, const Job& job, Interval when) const {
  if (timeline_ == nullptr || job.subject.space < 0) return;
  WriteTimelineEvent(*timeline_, {.lane = which == CopyStream::kFetch ? TimelineLane::kFetch
                                                                      : TimelineLane::kEvict,
                                  .space = static_cast<uint16_t>(job.subject.space),
                                  .subject = job.subject.chunk,
                                  .begin_ns = TimelineNs(when.begin),
                                  .end_ns = TimelineNs(when.end),
                                  .size_bytes = job.size_bytes});
}

void CopyEngineHost::RunWorker(CopyStream which) {
  Stream& stream = streams_[static_cast<size_t>(which)];
  // A timed wait then ends when asked for, and not up to 50 us later; without it, it is only late.
  if (stream.bytes_per_second > 0) ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  Clock::time_point link_free;
  for (;;) {
    Job job;
    {
      MutexLock lock(stream.mutex);
      stream.idle = true;
      while (stream.queue.empty() && !stream.stopping) stream.mutex.WaitFor(stream.changed);
      stream.idle = false;
      if (stream.queue.empty()) return;
      job = stream.queue.front();
      stream.queue.pop_front();
    }
    // An event names a copy that was enqueued before this one, so two streams never wait in a ring.
    const bool at_once = Done(job.after);
    Wait(job.after);
    if (stream.bytes_per_second == 0) {
      Show(which, job, Run(job));
    } else {
      if (!at_once) job.enqueued = Clock::now();
      Show(which, job, RunPaced(stream, job, link_free));
    }
    stream.done.fetch_add(1, std::memory_order_release);
    stream.done.notify_all();
  }
}

CopyEngineHost::Interval CopyEngineHost::RunPaced(Stream& stream, const Job& job,
                                                  Clock::time_point& link_free) {
  const int64_t link_bytes = job.source == nullptr ? 0 : job.size_bytes;
  const double nanoseconds =
      static_cast<double>(link_bytes) * 1e9 / static_cast<double>(stream.bytes_per_second);
  // From the ideal end of the one before and not from its wake-up, so that lateness does not add
  // up.
  const Clock::time_point begin = std::max(link_free, job.enqueued);
  link_free = begin + std::chrono::nanoseconds(static_cast<int64_t>(std::ceil(nanoseconds)));
  CopyBytes(job.destination, job.source, job.size_bytes);
  MutexLock lock(stream.mutex);
  while (!stream.stopping && Clock::now() < link_free) {
    stream.mutex.WaitUntil(stream.changed, link_free);
  }
  return {begin, link_free};
}

}  // namespace gemini::client
