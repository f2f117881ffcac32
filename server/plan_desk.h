// SPDX-License-Identifier: Apache-2.0
// What requests about traces and plans do. The plan service does the work; here a peer's numbers
// are checked, and what a session's plans need of DEVICE becomes its lease's floor.
// Owner:  the server thread.
// Errors: Handle returns why a request is refused, and has changed nothing then. After OK the desk
//         answers, now or later.
#pragma once
#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "gemini/cost_model.h"
#include "gemini/system/unique_fd.h"
#include "server/leases/lease_book.h"
#include "server/loop/server_options.h"
#include "server/plans/plan_service.h"
#include "server/sessions.h"
#include "server/space_desk.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

class PlanDesk {
 public:
  // All that is handed in must outlive this.
  PlanDesk(const ServerOptions& options, const TierStore& device, Sessions& sessions,
           SpaceDesk& spaces, LeaseBook& book);

  absl::Status Handle(PeerSession& session, uint64_t id, const OpenTraceRequest& open);
  absl::Status Handle(PeerSession& session, uint64_t id, const MakePlanRequest& make);
  absl::Status Handle(PeerSession& session, uint64_t id, const FindTraceRequest& find);
  absl::Status Handle(PeerSession& session, uint64_t id, const FindPlanInputsRequest& find);

  // The session ends: a plan that it waits for is not made, and its trace room is closed.
  void End(PeerSession& session);
  // The last ones that were measured or refreshed.
  CostModel costs() const { return service_.costs(); }

 private:
  absl::Status SendTraceRoom(PeerSession& session, uint64_t id, int64_t size_bytes);
  // Closes it without the owner thread's or a plan's time; then calls `then` if the session goes
  // on.
  void CloseTraceRoom(PeerSession& session, UniqueFd room,
                      absl::AnyInvocable<void(PeerSession&)> then);
  // Pauses the connection, and returns what the service is to call. That calls `send` here if the
  // session goes on, refuses what `send` does not return OK for, and reads on.
  template <typename Found, typename Send>
  absl::AnyInvocable<void(absl::StatusOr<Found>)> Answering(PeerSession& session, uint64_t id,
                                                            Send send);
  // What its plans need at least is what a lease may shrink to, once there is one.
  void SetFloor(PeerSession& session, const std::string& phase, int64_t device_floor_bytes);

  const TierStore& device_;
  Sessions& sessions_;
  SpaceDesk& spaces_;
  LeaseBook& book_;
  PlanService service_;  // Last: its reports use what is above.
};

}  // namespace gemini::server
