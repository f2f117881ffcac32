// SPDX-License-Identifier: Apache-2.0
// One peer: its connection, its process, its lease and the lease's spaces. Data only: the rules are
// in server/server.h and the desks beside it.
// Owner:  the server thread.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gemini/shm/lease_shm.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/unique_fd.h"
#include "gemini/tier.h"
#include "server/leases/lease_book.h"
#include "server/loop/event_loop.h"
#include "server/plans/plan_recipe.h"
#include "server/plans/plan_wait.h"
#include "server/spaces/space.h"
#include "server/tiers/tier_store.h"
#include "server/wire/peer_connection.h"
#include "server/wire/peer_process.h"
#include "server/wire/request_wire.h"

namespace gemini::server {

struct Lease {
  explicit Lease(const LeaseTerms& of) : terms(of) {}

  const LeaseTerms& terms;  // In the lease book, where they stay as long as this.
  uint64_t id = 0;
  uint64_t generation = 1;
  TierMap<int64_t> used;    // HOST and NVME: of its spaces.
  TierGrant arena;          // DEVICE: at least what is granted; of slabs those that were asked for.
  int64_t arena_bytes = 0;  // The addresses that it takes: no less.
  UniqueFd segment;         // LeaseSegmentShm.
  MappedMemory segment_map;
  UniqueFd timeline;          // TimelineShm, written by the client; until it is sent.
  MappedMemory timeline_map;  // Read-only.
  uint64_t epoch = 0;         // The last one posted.
  bool owner_died = false;
  struct RefusalShown {
    uint64_t request = 0;
    absl::Status status;
  };
  std::optional<RefusalShown> refusal;  // Of its OpenLease; sent when its bytes are back.
};

// Phases of a session of which something is kept by name.
inline constexpr size_t kMaxListedPhases = 64;

struct OpenedSpace {
  std::unique_ptr<Space> space;
  uint16_t index = 0;  // In the session, in the order of opening: as in its timeline.
  EventLoop::WatchId kick_watch = 0;
  bool closing = false;                   // Waits for I/O in flight.
  std::optional<uint64_t> close_request;  // Answered when closed.
  bool destroying = false;                // The worker has its memory.
  std::optional<SpaceCounts> counts;      // As last counted for a status.
  bool serve_posted = false;              // More of its ring is to be served by a message.
};

struct PeerSession {
  uint64_t id = 0;
  PeerProcess peer;
  EventLoop::WatchId pidfd_watch = 0;
  std::unique_ptr<PeerConnection> connection;  // Null after the hang-up.
  bool said_hello = false;
  std::optional<EventLoop::TimerId> hello_timer;
  PeerRole role = PeerRole::kUnknown;
  std::string label;  // Escaped.
  std::optional<Lease> lease;
  std::map<uint64_t, OpenedSpace> spaces;
  UniqueFd trace_room;  // Written by the client since OpenTrace; MakePlan takes it.
  int64_t trace_room_bytes = 0;
  std::shared_ptr<PlanWait> plan_wait;  // For its last MakePlan or FindTrace; null before.
  // Why its last plan was refused; empty: it was made, or none was asked for.
  std::string plan_refusal;
  std::map<std::string, int64_t> phase_floors;    // What its plans need of DEVICE, by phase.
  int64_t other_phases_floor = 0;                 // The most of any phase that is not listed there.
  std::map<std::string, PlanRecipe> plan_inputs;  // Of the last plan, by phase.
  uint16_t next_space_index = 0;
  uint64_t requests = 0;  // Messages, ever.
  int worker_jobs = 0;    // Being made or destroyed for this session.
  // Set while others are given time to give way for its lease.
  std::optional<EventLoop::TimerId> patience_timer;
  bool embedded() const { return !peer.pidfd; }
  bool reclaiming() const { return lease.has_value() && lease->terms.reclaiming; }
  // It has a lease that it may use.
  bool holds_lease() const {
    return lease.has_value() && !lease->terms.fenced && !lease->terms.reclaiming;
  }
  // Its request can be answered: it is there, and no end of its lease has come between.
  bool answerable() const { return connection != nullptr && !reclaiming(); }
  // It hung up without an end to its session: its lease is kept until its process has ended.
  bool kept_for_process() const {
    return connection == nullptr && lease.has_value() && !lease->terms.reclaiming;
  }
};

}  // namespace gemini::server
