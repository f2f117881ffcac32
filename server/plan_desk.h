// SPDX-License-Identifier: Apache-2.0
// Handles requests about traces and plans. It checks the peer's numbers, passes the work to the
// plan service, and makes what a session's plans need of DEVICE the floor of its lease.
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

  // Cancels the plan that the session waits for, and closes its trace room.
  void End(PeerSession& session);
  // Returns the cost model as it was last measured or refreshed.
  CostModel costs() const { return service_.costs(); }

 private:
  absl::Status SendTraceRoom(PeerSession& session, uint64_t id, int64_t size_bytes);
  // Closes `room` on a thread of its own, because that may block. Then calls `then` if the session
  // can still be answered.
  void CloseTraceRoom(PeerSession& session, UniqueFd room,
                      absl::AnyInvocable<void(PeerSession&)> then);
  // Pauses the connection while the session waits by plan_wait, at most max_plan_wait until the
  // work begins: then the request is refused. Returns the callback for the service's result. Unless
  // the session has ended, the callback calls `send` on the server thread, refuses the request if
  // `send` returns an error, and resumes the connection. What was sent is taken back after
  // answer_life.
  template <typename Found, typename Send>
  absl::AnyInvocable<void(absl::StatusOr<Found>)> Answering(PeerSession& session, uint64_t id,
                                                            Send send);
  // Refuses the request if its work has not begun.
  void EndWaiting(uint64_t session_id, uint64_t id, const std::shared_ptr<PlanWait>& wait);
  void CancelTimer(PeerSession& session);
  // Sets the lease's floor to the largest need of any phase, where `phase` now has this one.
  void SetFloor(PeerSession& session, const std::string& phase, int64_t device_floor_bytes);

  const absl::Duration max_wait_, answer_life_;
  const TierStore& device_;
  Sessions& sessions_;
  SpaceDesk& spaces_;
  LeaseBook& book_;
  PlanService service_;  // Last: its reports use what is above.
};

}  // namespace gemini::server
