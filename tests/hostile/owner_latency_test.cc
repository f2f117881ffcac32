// SPDX-License-Identifier: Apache-2.0
// No request and no hang-up of a peer keeps the server's owner thread from the others.
#include "tests/hostile/owner_latency.h"

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "gemini/byte_size.h"
#include "gemini/trace_wire.h"
#include "tests/server/traces.h"

namespace gemini::server {
namespace {

constexpr int64_t kChunk = 4096;
constexpr int64_t kMaxSessions = 256;  // As in server/server.h.

// Threads that do nothing: the kernel walks all of a process to say how it is.
class IdleThreads {
 public:
  explicit IdleThreads(int count) {
    try {
      for (int i = 0; i < count; ++i) {
        threads_.emplace_back([this] {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [this] { return stop_; });
        });
      }
    } catch (const std::system_error&) {  // A machine that has no more is tried with these.
    }
  }
  ~IdleThreads() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Repeats `work` on a thread until it is destroyed.
class Repeated {
 public:
  explicit Repeated(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          while (!stop_) work();
        }) {}
  ~Repeated() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

void SendMakePlan(WireClient& client) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateMakePlan(builder, 0, kChunk);
  wire::FinishMessageBuffer(builder,
                            wire::CreateMessage(builder, 99, wire::Body::MakePlan, body.Union()));
  EXPECT_OK(client.SendRaw(absl::string_view(
      reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize())));
}

TEST_F(OwnerLatencyTest, ManyNewcomersBesideManyLeasesThatTakeEpochs) {
  ExpectBounded("120 newcomers that nobody answers", [&](OwnerLatencies& measured) {
    constexpr int kNumLeases = 120;
    StartDaemon({"--device-memory", "64MiB", "--host-memory", "64MiB", "--epoch-timeout", "0.7"});
    const IdleThreads threads(2000);
    const TierMap<int64_t> small = {{kChunk, 0, 0}};
    std::vector<WireClient> leases = Connect("lease", kNumLeases);
    for (WireClient& client : leases) ASSERT_OK(client.OpenLease(small, small, true));
    std::vector<WireClient> holder = Connect("holder", 1);
    const int64_t rest = 64 * kMiB - kNumLeases * kChunk;
    ASSERT_OK(holder[0].OpenLease({{rest, 0, 0}}, {{kChunk, 0, 0}}, true));
    std::vector<WireClient> newcomers = Connect("newcomer", kNumLeases);
    for (WireClient& client : newcomers) ASSERT_OK(client.SendOpenLease(small, small, true));
    measured = Measure();
    for (WireClient& client : newcomers) {
      EXPECT_THAT(client.ReceiveLease(),
                  StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("holder0")));
    }
  });
}

TEST_F(OwnerLatencyTest, HangUpsOfAllWhoWaitBesideManyLeases) {
  ExpectBounded("120 newcomers that hang up", [&](OwnerLatencies& measured) {
    constexpr int kNumLeases = 120;
    StartDaemon({"--device-memory", "64MiB", "--host-memory", "64MiB", "--epoch-timeout", "60"});
    const IdleThreads threads(2000);
    const TierMap<int64_t> small = {{kChunk, 0, 0}};
    std::vector<WireClient> leases = Connect("lease", kNumLeases);
    for (WireClient& client : leases) ASSERT_OK(client.OpenLease(small, small, true));
    std::vector<WireClient> holder = Connect("holder", 1);
    const int64_t rest = 64 * kMiB - kNumLeases * kChunk;
    ASSERT_OK(holder[0].OpenLease({{rest, 0, 0}}, {{kChunk, 0, 0}}, true));
    std::vector<WireClient> newcomers = Connect("newcomer", kNumLeases);
    for (WireClient& client : newcomers) ASSERT_OK(client.SendOpenLease(small, small, true));
    ASSERT_OK(observer_->GetStatus());
    newcomers.clear();
    measured = Measure();
  });
}

TEST_F(OwnerLatencyTest, AFloodOfTracesBehindASlowPlan) {
  ExpectBounded("a flood of traces behind slow plans", [&](OwnerLatencies& measured) {
    StartDaemon({"--device-memory", "1MiB", "--host-memory", "64MiB"});
    const TierMap<int64_t> nothing = {{0, 0, 0}};
    const std::string slow = EncodeTrace(StepTrace(100'000, kChunk));
    const int64_t files_before = FilesOfDaemon("").all;

    std::vector<WireClient> planners = Connect("planner", 1);
    ASSERT_OK(planners[0].OpenLease({{kMiB, 0, 0}}, {{kMiB, 0, 0}}));
    const auto plan = [&] {
      EXPECT_OK(planners[0].WriteTrace(slow));
      EXPECT_OK(planners[0].MakePlan({.device_bytes = kMiB}));
    };
    std::vector<WireClient> flooders = Connect("flooder", 1);
    ASSERT_OK(flooders[0].OpenLease(nothing, nothing));
    const std::string page(kMiB, 'x');
    std::atomic<int> rooms = 0, refused = 0;
    const auto flood = [&] { ++(flooders[0].WriteTrace(page).ok() ? rooms : refused); };
    // Comes, has a plan queued, and goes.
    std::atomic<int> visits = 0;
    const auto visit = [&] {
      auto client = daemon_->Connect("visitor");
      if (!client.ok()) return;  // Too many at once.
      if (!client->OpenLease(nothing, nothing).ok() || !client->WriteTrace(page).ok()) return;
      SendMakePlan(*client);
      ++visits;
    };
    OpenFiles most;
    const auto watch = [&] {
      const OpenFiles files = FilesOfDaemon("gemini-trace-room");
      most.all = std::max(most.all, files.all);
      most.named = std::max(most.named, files.named);
      most.named_bytes = std::max(most.named_bytes, files.named_bytes);
      ::poll(nullptr, 0, 10);
    };
    {
      const Repeated planning(plan), flooding(flood), visiting(visit), watching(watch);
      measured = Measure();
    }
    std::printf("%d rooms and %d visits: at most %d descriptors, %d rooms of %d MiB\n",
                rooms.load(), visits.load(), static_cast<int>(most.all),
                static_cast<int>(most.named), static_cast<int>(most.named_bytes / kMiB));
    EXPECT_GT(rooms, 100);
    EXPECT_EQ(refused, 0);
    EXPECT_GT(visits, 20);
    // One room a session until it is closed, and one of the plan that has begun. A session costs
    // three descriptors more, and two while its lease is made.
    EXPECT_LE(most.named, kMaxSessions + 1);
    EXPECT_LE(most.named_bytes, (kMaxSessions + 1) * kMiB + static_cast<int64_t>(slow.size()));
    EXPECT_LE(most.all, files_before + 6 * kMaxSessions);
  });
}

}  // namespace
}  // namespace gemini::server
