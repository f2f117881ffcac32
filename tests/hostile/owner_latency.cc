// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/owner_latency.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int kRequests = 200;
constexpr absl::Duration kPeriod = absl::Milliseconds(10);
// What docs/failure_model.md promises. A sanitizer watches each byte that is copied, and makes
// memory of its own beside the server's; the owner's thread waits for that.
#ifdef GEMINI_TIMES_SAY_LITTLE
constexpr absl::Duration kBound = absl::Milliseconds(250);
#else
constexpr absl::Duration kBound = absl::Milliseconds(50);
#endif

void WaitUntil(absl::Time due) {
  const absl::Duration left = due - absl::Now();
  if (left > absl::ZeroDuration()) {
    ::poll(nullptr, 0,
           static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
  }
}

// How late the machine itself runs whoever is due: a thread on each processor that waits for each
// due time, as the observer does, and asks nobody for anything. A virtual machine whose processors
// are taken away for a tenth of a second delays these as it delays the observer and the daemon; a
// daemon that is slow delays the observer alone.
class MachineLateness {
 public:
  explicit MachineLateness(absl::Time start) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    EXPECT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &allowed)) late_.emplace_back().processor = processor;
    }
    for (OfProcessor& of : late_) of.thread = std::thread([&, start] { Watch(of, start); });
  }
  ~MachineLateness() { End(); }
  MachineLateness(const MachineLateness&) = delete;
  MachineLateness& operator=(const MachineLateness&) = delete;

  void End() {
    ended_ = true;
    for (OfProcessor& of : late_) {
      if (of.thread.joinable()) of.thread.join();
    }
  }
  // Of the request with that number, on the processor that was latest; nothing where that is less
  // than a period, as it is while the machine runs. After End.
  absl::Duration Of(size_t request) const {
    absl::Duration most = absl::ZeroDuration();
    for (const OfProcessor& of : late_) {
      if (request < of.late.size()) most = std::max(most, of.late[request]);
    }
    return most < kPeriod ? absl::ZeroDuration() : most;
  }

 private:
  struct OfProcessor {
    int processor = 0;
    std::vector<absl::Duration> late;
    std::thread thread;
  };

  void Watch(OfProcessor& of, absl::Time start) const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(of.processor, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    while (!ended_) {
      const absl::Time due = start + kPeriod * static_cast<int64_t>(of.late.size());
      WaitUntil(due);
      of.late.push_back(absl::Now() - due);
    }
  }

  std::atomic<bool> ended_ = false;
  std::vector<OfProcessor> late_;
};

std::string Text(const LatencyFigures& figures) {
  return absl::StrCat("p50 ", absl::FormatDuration(figures.p50), ", p99 ",
                      absl::FormatDuration(figures.p99), ", max ",
                      absl::FormatDuration(figures.max));
}

}  // namespace

OwnerLatency::~OwnerLatency() { Stop(); }

void OwnerLatency::Stop() {
  daemon_.reset();
  ended_ = true;
  ended_.notify_all();
  if (starter_.joinable()) starter_.join();
  ended_ = false;
}

void OwnerLatency::Start(std::vector<std::string> flags, const std::function<void()>& deny) {
  // A thread of its own, for what is denied to a thread is denied for ever. It lives as long as the
  // daemon, which is killed when the thread that started it ends.
  std::promise<absl::Status> promise;
  std::future<absl::Status> started = promise.get_future();
  starter_ =
      std::thread([this, deny, flags = std::move(flags), promise = std::move(promise)]() mutable {
        if (deny) deny();
        absl::StatusOr<DaemonProcess> daemon = DaemonProcess::Start(GEMINI_GEMINID_PATH, flags);
        const absl::Status status = daemon.status();
        if (daemon.ok()) daemon_ = std::make_unique<DaemonProcess>(*std::move(daemon));
        promise.set_value(status);
        ended_.wait(false);
      });
  ASSERT_OK(started.get());
}

WireClient OwnerLatency::Connect(absl::string_view label, wire::Role role) {
  absl::StatusOr<WireClient> client = daemon_->Connect(label, role);
  EXPECT_OK(client) << label;
  return client.ok() ? *std::move(client) : WireClient(UniqueFd());
}

LatencyFigures OwnerLatency::Measure(const std::function<void()>& hostile) {
  WireClient observer = Connect("observer", wire::Role::kObserver);
  std::atomic<bool> running = static_cast<bool>(hostile);
  std::thread other([&] {
    if (hostile) hostile();
    running = false;
  });
  std::vector<absl::Duration> waits;
  const absl::Time start = absl::Now();
  MachineLateness machine(start);
  while (waits.size() < kRequests || running) {
    const absl::Time due = start + kPeriod * static_cast<int64_t>(waits.size());
    WaitUntil(due);
    const absl::StatusOr<WireReply> status = observer.GetStatus();
    EXPECT_OK(status);
    waits.push_back(absl::Now() - due);
    if (!status.ok()) break;
  }
  other.join();
  machine.End();
  for (size_t i = 0; i < waits.size(); ++i) waits[i] -= machine.Of(i);
  std::ranges::sort(waits);
  return {.p50 = waits[waits.size() / 2],
          .p99 = waits[(waits.size() * 99 + 99) / 100 - 1],
          .max = waits.back()};
}

void OwnerLatency::ExpectPrompt(absl::string_view what, const std::function<void()>& hostile,
                                int tries) {
  // A machine that is slow at rest has a wider bar.
  const absl::Duration bound = std::max(kBound, 5 * at_rest_.p99);
  LatencyFigures busy;
  do {
    busy = Measure(hostile);
    std::printf("%s\n  beside it: %s\n  at rest:   %s\n", std::string(what).c_str(),
                Text(busy).c_str(), Text(at_rest_).c_str());
  } while (busy.p99 > bound && --tries > 0);
  EXPECT_LE(busy.p99, bound) << "at rest: " << Text(at_rest_);
}

int64_t OwnerLatency::CountDescriptors(absl::string_view part) const {
  int64_t count = 0;
  std::error_code gone;  // Of a descriptor that was closed meanwhile.
  for (const auto& entry : std::filesystem::directory_iterator(
           absl::StrCat("/proc/", daemon_->process().pid(), "/fd"))) {
    const std::string link = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && absl::StrContains(link, part)) ++count;
  }
  return count;
}

bool OwnerLatency::Await(absl::Duration patience, const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + patience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace gemini::server
