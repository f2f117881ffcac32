// SPDX-License-Identifier: Apache-2.0
// What requests about leases do, from the opening of a lease to the reclaim of its bytes. Admission
// decides who gets what; here its decisions become memory, posted targets and answers.
// Owner:  the server thread. Memory is made and destroyed by workers.
// Errors: Handle returns why a request is refused, and has changed nothing then. After OK the desk
//         answers, now or later.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/leases/admission.h"
#include "server/leases/lease_book.h"
#include "server/loop/server_options.h"
#include "server/plan_desk.h"
#include "server/sessions.h"
#include "server/space_desk.h"
#include "server/tiers/tier_store.h"
#include "server/wire/stopped_processes.h"

namespace gemini::server {

class LeaseDesk {
 public:
  // `lease_ended` is called when a session's lease is gone; it may erase the session. All that is
  // handed in must outlive this.
  LeaseDesk(const ServerOptions& options, TierStore& device, Sessions& sessions, SpaceDesk& spaces,
            PlanDesk& plans, LeaseBook& book, std::function<void(PeerSession&)> lease_ended);

  absl::Status Handle(PeerSession& session, uint64_t id, const OpenLeaseRequest& open);
  absl::Status Handle(PeerSession& session, uint64_t id, const AckEpochRequest& ack);

  // Ends the session's wait for a lease, if it waits.
  void DropWaiting(PeerSession& session);
  // Tries those who wait once for all that ends, comes free or times out in this turn of the loop.
  void RetryWaiting();
  // Ends the client's right to the lease: its generation is raised, its I/O refused.
  void Fence(PeerSession& session, absl::string_view why);
  // Nobody uses the lease's memory any more: it goes back to the machine, and its bytes to others.
  void BeginReclaim(PeerSession& session);
  // Destroys the memory once all that workers make or move for the lease has come back.
  void ContinueReclaim(PeerSession& session);
  // Takes back a lease that its client does not know of; then answers with this refusal.
  void TakeBack(PeerSession& session, uint64_t request, const absl::Status& refusal);
  // Refuses those who wait, and new leases from now on.
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
  std::string NoRoom(Tier tier, int64_t floor_bytes) const;
  std::string NobodyAnswered() const;

  const ServerOptions& options_;
  TierStore& device_;
  Sessions& sessions_;
  SpaceDesk& spaces_;
  PlanDesk& plans_;
  LeaseBook& book_;
  const std::function<void(PeerSession&)> lease_ended_;
  mutable StoppedProcesses stopped_processes_;
  bool retry_posted_ = false;
  bool draining_ = false;
  Admission admission_;
};

}  // namespace gemini::server
