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
#include "server/tiers/peer_memory.h"
#include "server/tiers/tier_store.h"
#include "server/wire/peer_connection.h"
#include "server/wire/peer_process.h"
#include "server/wire/request_wire.h"

namespace gemini::server {

struct Lease {
  explicit Lease(const LeaseTerms& of) : terms(of) {}

  const LeaseTerms& terms;  // In the lease book; valid as long as this.
  uint64_t id = 0;
  uint64_t generation = 1;
  TierMap<int64_t> used;    // HOST and NVME: taken by its spaces.
  TierGrant arena;          // DEVICE: one extent of arena_bytes, or the slabs taken so far.
  int64_t arena_bytes = 0;  // What DEVICE may grow to: the addresses that the client reserves.
  UniqueFd segment;         // LeaseSegmentShm.
  MappedMemory segment_map;
  UniqueFd timeline;  // TimelineShm, written by the client. Closed once it is sent.
  PeerMemory timeline_map;
  uint64_t epoch = 0;  // The last one posted.
  bool owner_died = false;
  struct RefusalShown {
    uint64_t request = 0;
    absl::Status status;
  };
  std::optional<RefusalShown> refusal;  // Sent when the lease has been reclaimed.
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
  SpaceCounts counts;                     // As last counted for a status, at first untouched.
  bool ring_queued = false;               // Its I/O ring waits for its turn in SpaceDesk.
};

struct PeerSession {
  uint64_t id = 0;
  PeerProcess peer;
  // What it allocates is charged to the control groups of this process. Set before it gets a lease.
  bool charged_here = false;
  EventLoop::WatchId pidfd_watch = 0;
  std::unique_ptr<PeerConnection> connection;  // Null after the hang-up.
  bool said_hello = false;
  std::optional<EventLoop::TimerId> hello_timer;
  PeerRole role = PeerRole::kUnknown;
  std::string label;  // Escaped.
  std::optional<Lease> lease;
  std::map<uint64_t, OpenedSpace> spaces;
  // A memfd of the client's trace, from OpenTrace until MakePlan takes it.
  UniqueFd trace_room;
  int64_t trace_room_bytes = 0;
  std::shared_ptr<PlanWait> plan_wait;  // For its last MakePlan or FindTrace; null before.
  // Runs while that waits for the plans of others, and then until its answer is taken back.
  std::optional<EventLoop::TimerId> plan_timer;
  // Why its last plan was refused. Empty: it was made, or none was requested.
  std::string plan_refusal;
  std::map<std::string, int64_t> phase_floors;    // What its plans need of DEVICE, by phase.
  int64_t other_phases_floor = 0;                 // The most of all phases that are not listed.
  std::map<std::string, PlanRecipe> plan_inputs;  // Of the last plan, by phase.
  uint16_t next_space_index = 0;
  uint64_t requests = 0;  // Messages received.
  int worker_jobs = 0;    // Jobs in flight for this session.
  // Runs while other leases have time to shrink for this session's lease.
  std::optional<EventLoop::TimerId> patience_timer;
  bool embedded() const { return !peer.pidfd; }
  bool reclaiming() const { return lease.has_value() && lease->terms.reclaiming; }
  // Returns whether it has a lease that it may use.
  bool holds_lease() const {
    return lease.has_value() && !lease->terms.fenced && !lease->terms.reclaiming;
  }
  // Returns whether it can be answered: it is connected, and its lease is not being reclaimed.
  bool answerable() const { return connection != nullptr && !reclaiming(); }
  // Returns whether it hung up without CloseSession. Its lease is then kept until its process ends.
  bool kept_for_process() const {
    return connection == nullptr && lease.has_value() && !lease->terms.reclaiming;
  }
};

}  // namespace gemini::server
