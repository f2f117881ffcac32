// SPDX-License-Identifier: Apache-2.0
// Handles requests about leases, which are grants of memory to clients, from the request until the
// memory is reclaimed.
// Admission decides who gets how much. This class makes the memory, posts the targets and answers.
// Owner:  the server thread. Memory is made and destroyed by workers.
// Errors: Handle returns why a request is refused, and has changed nothing then. After OK the desk
//         answers, now or later.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/device_promises.h"
#include "server/leases/admission.h"
#include "server/leases/lease_book.h"
#include "server/loop/server_options.h"
#include "server/plan_desk.h"
#include "server/sessions.h"
#include "server/space_desk.h"
#include "server/tiers/host_room.h"
#include "server/tiers/tier_store.h"
#include "server/wire/stopped_processes.h"

namespace gemini::server {

class LeaseDesk {
 public:
  // `lease_ended` is called when a session's lease is gone; it may erase the session. All that is
  // handed in must outlive this.
  LeaseDesk(const ServerOptions& options, TierStore& device, Sessions& sessions, SpaceDesk& spaces,
            PlanDesk& plans, const DevicePromises& promises, LeaseBook& book,
            std::function<void(PeerSession&)> lease_ended);

  absl::Status Handle(PeerSession& session, uint64_t id, const OpenLeaseRequest& open);
  absl::Status Handle(PeerSession& session, uint64_t id, const AckEpochRequest& ack);

  // Removes the session from those that wait for a lease, if it is one.
  void DropWaiting(PeerSession& session);
  // Has the loop try the waiting sessions again. Several calls before that cause one try.
  void RetryWaiting();
  // Ends the client's right to its lease: raises the generation and cancels its I/O.
  void Fence(PeerSession& session, absl::string_view why);
  // Begins to reclaim the lease's memory, which nobody may use any more.
  void BeginReclaim(PeerSession& session);
  // Destroys the lease's memory, unless jobs or transfers of the session are in flight.
  void ContinueReclaim(PeerSession& session);
  // Reclaims a lease that its client does not know of, and then answers the request with `refusal`.
  void TakeBack(PeerSession& session, uint64_t request, const absl::Status& refusal);
  // Refuses the sessions that wait, and new leases from now on.
  void Drain();
  bool draining() const { return draining_; }

 private:
  void Begin(const WaitingLease& admitted);
  void Finish(PeerSession& session, uint64_t request, const absl::Status& made);
  void Refuse(const WaitingLease& waiting, Tier lacking);
  // Cancels the timer of a wait that is over. Returns its session.
  PeerSession& EndPatience(uint64_t session);
  void BeginPatience(uint64_t session);
  void PostTarget(uint64_t session);
  bool IsStopped(const PeerSession& session) const;
  // Reads what DeviceRoom goes by. To be called once before any number of sessions is tried, for it
  // looks at every space: those that wait are many, and so are spaces.
  void ReadRoom();
  int64_t DeviceRoom(std::optional<uint64_t> newcomer) const;
  std::string NoRoom(Tier tier, int64_t floor_bytes) const;
  std::string NobodyAnswered() const;

  const ServerOptions& options_;
  TierStore& device_;
  Sessions& sessions_;
  SpaceDesk& spaces_;
  PlanDesk& plans_;
  const DevicePromises& promises_;
  LeaseBook& book_;
  const std::function<void(PeerSession&)> lease_ended_;
  mutable StoppedProcesses stopped_processes_;
  bool retry_posted_ = false;
  bool draining_ = false;
  HostMemories memories_;    // As of ReadRoom.
  PromisedDevice promised_;  // As of ReadRoom, and what was granted since.
  Admission admission_;
};

}  // namespace gemini::server
