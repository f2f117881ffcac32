// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "gemini/byte_size.h"
#include "gemini/shm/timeline_shm.h"
#include "server/embedded_server.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

// Whatever a client leaves in its timeline, an observer gets events that make sense, and an end.
TEST(HostileTimelineTest, ATimelineOfNoiseIsRefusedOrHarmless) {
  ServerOptions options;
  options.capacity_bytes[Tier::kHost] = 32 * kMiB;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                       EmbeddedServer::Start(options));
  WireClient client(*server->Connect());
  ASSERT_OK(client.Hello("scribbler"));
  ASSERT_OK_AND_ASSIGN(const WireLease lease, client.OpenLease({{0, kMiB, 0}}, {{0, kMiB, 0}}));
  ASSERT_OK(client.OpenSpace({.name = "scribbled", .host_slots = 4}));
  TimelineShm& ring = lease.timeline();
  WireClient observer(*server->Connect());
  ASSERT_OK(observer.Hello("memstat", wire::Role::kObserver));
  std::mt19937_64 random(/*seed=*/5);
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  int64_t seen = 0;
  for (const uint64_t written : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1001},
                                 uint64_t{16'384}, uint64_t{16'385}, uint64_t{1} << 40,
                                 uint64_t{1} << 62, (uint64_t{1} << 62) + 1, kMost - 1, kMost}) {
    SCOPED_TRACE(written);
    for (uint64_t i = 0; i < kTimelineEntries; ++i) {
      TimelineEntryShm& entry = ring.entries[i];
      // As if each had been written last, or anything.
      const uint64_t last = written - (written - 1 - i) % kTimelineEntries;
      entry.stamp.store(random() % 8 == 0 ? random() : last);
      entry.what.store(random() & ~uint64_t{0xf8f8});
      entry.begin_ns.store(random() >> random() % 64);
      entry.duration_ns.store(random() >> random() % 64);
      entry.stall_ns.store(random() >> random() % 64);
      entry.size_bytes.store(random() >> random() % 64);
    }
    ring.written.store(written);
    for (const uint64_t first : {uint64_t{0}, uint64_t{1}, written, kMost}) {
      uint64_t next = first, requests = 0, shown = 0;
      do {
        ASSERT_OK_AND_ASSIGN(const WireReply reply, observer.ReadTimeline("scribbled", next));
        const wire::TimelineReply& page = *reply.message().body_as_TimelineReply();
        shown = page.written();
        ASSERT_LE(page.events()->size(), 1000u);
        for (const wire::TimelineEvent* event : *page.events()) {
          ++seen;
          EXPECT_LT(event->lane(), kNumTimelineLanes);
          EXPECT_LT(event->cause(), kNumStallCauses);
          EXPECT_GE(event->begin_ns(), event->stall_ns());
          EXPECT_GE(event->end_ns(), event->begin_ns());
          EXPECT_GE(event->stall_ns(), 0);
          EXPECT_GE(event->size_bytes(), 0);
        }
        if (page.next() <= next) break;
        next = page.next();
        ASSERT_LE(++requests, 20u);
      } while (next <= shown);
    }
  }
  EXPECT_GT(seen, 0);
  // Rewritten while it is read.
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    for (uint32_t i = 0; !stop; ++i) WriteTimelineEvent(ring, {.subject = i, .size_bytes = i});
  });
  ring.written.store(0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_OK_AND_ASSIGN(const WireReply reply, observer.ReadTimeline("scribbled", 0));
    for (const wire::TimelineEvent* event : *reply.message().body_as_TimelineReply()->events()) {
      EXPECT_GE(event->size_bytes(), 0);
    }
  }
  stop = true;
  scribbler.join();
  // Its pages are gone, its size is not.
  ASSERT_EQ(::fallocate(lease.timeline_fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        sizeof(TimelineShm)),
            0);
  ASSERT_OK_AND_ASSIGN(const WireReply empty, observer.ReadTimeline("scribbled", 0));
  EXPECT_EQ(empty.message().body_as_TimelineReply()->written(), 0);
  EXPECT_OK(client.CloseSession());
}

}  // namespace
}  // namespace gemini::server
