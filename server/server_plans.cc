// SPDX-License-Identifier: Apache-2.0
// The requests of server/server.h about traces and plans. The work is plan_service.h's; here a
// peer's numbers are checked.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/plan/trace_wire.h"
#include "server/leases/device_grant.h"
#include "server/server.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {
namespace {

constexpr size_t kMaxShownPhaseChars = 256;
constexpr size_t kMaxShownRefusalChars = 240;  // So that the refusals of all sessions fit a status.

// The session's spaces were given their ids in the order of their opening.
std::string FirstSpaceName(const PeerSession& session) {
  for (const auto& [id, opened] : session.spaces) {
    if (!opened.destroying) return opened.space->plan().name;
  }
  return "";
}

bool HasLease(const PeerSession& session) {
  return session.lease.has_value() && !session.lease->fenced && !session.lease->reclaiming;
}

absl::Status CheckMakePlan(const MakePlanRequest& make, const PeerSession& session) {
  if (!HasLease(session)) return absl::FailedPreconditionError("open a lease before a plan");
  if (!session.trace_room) {
    return absl::FailedPreconditionError("a plan needs a trace: OpenTrace, write it, MakePlan");
  }
  const int64_t granted_bytes = session.lease->granted[Tier::kDevice];
  if (make.device_bytes < 0 || make.device_bytes > granted_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a plan for ", make.device_bytes,
                                                   " bytes of DEVICE, the lease has ",
                                                   FormatByteSize(granted_bytes)));
  }
  if (make.chunk_bytes <= 0 || make.chunk_bytes % kPageBytes != 0 ||
      make.chunk_bytes > kMaxPlanChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a plan for chunks of ", make.chunk_bytes,
                                                   " bytes: it must be a positive multiple of ",
                                                   kPageBytes, ", at most ", kMaxPlanChunkBytes));
  }
  if (make.policy > static_cast<uint8_t>(PolicyKind::kOnline)) {
    return absl::InvalidArgumentError(absl::StrCat("no policy ", make.policy));
  }
  // Written so that NaN is refused.
  if (!(make.param_fraction >= 0 && make.param_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fraction of ", make.param_fraction, " of the parameters: 0 to 1"));
  }
  if (!(make.optimizer_fraction >= 0 && make.optimizer_fraction <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("a fraction of ", make.optimizer_fraction,
                                                   " of the optimizer states: 0 to 1"));
  }
  if (make.device_bandwidth != 0 &&
      !(make.device_bandwidth >= kLeastRate && make.device_bandwidth <= kMostRate)) {
    return absl::InvalidArgumentError(absl::StrCat("a device bandwidth of ", make.device_bandwidth,
                                                   " bytes a second: ", kLeastRate, " to ",
                                                   kMostRate, ", or 0 for the measured one"));
  }
  return absl::OkStatus();
}

// Whether something of this phase is kept by its name. A client's phases: what is kept of them has
// a bound.
template <typename Kept>
bool IsListed(const std::map<std::string, Kept>& phases, const std::string& phase) {
  return phases.contains(phase) || phases.size() < kMaxListedPhases;
}

// What its plans need at least is what a lease may shrink to, once there is one.
void SetFloor(PeerSession& session, const std::string& phase, int64_t device_floor_bytes,
              int64_t grain_bytes) {
  if (!HasLease(session) || !session.lease->takes_epochs) return;
  int64_t& others = session.other_phases_floor;
  if (IsListed(session.phase_floors, phase)) {
    session.phase_floors[phase] = device_floor_bytes;
  } else {
    others = std::max(others, device_floor_bytes);
  }
  int64_t floor_bytes = others;
  for (const auto& [name, bytes] : session.phase_floors) floor_bytes = std::max(floor_bytes, bytes);
  // Shares of DEVICE are multiples of the grain because floors are.
  const int64_t granted_bytes = session.lease->granted[Tier::kDevice];
  session.lease->floor[Tier::kDevice] =
      std::min(RoundUp(std::min(floor_bytes, granted_bytes), grain_bytes), granted_bytes);
}

void KeepInputs(PeerSession& session, const std::string& phase, const PlanRecipe& inputs) {
  if (IsListed(session.plan_inputs, phase)) session.plan_inputs[phase] = inputs;
}

}  // namespace

void Server::Handle(PeerSession& session, uint64_t id, const OpenTraceRequest& open) {
  if (!HasLease(session)) {
    Refuse(session, id, absl::FailedPreconditionError("open a lease before a trace"));
    return;
  }
  if (open.size_bytes < 1 || open.size_bytes > kMaxTraceBytes) {
    Refuse(session, id,
           absl::InvalidArgumentError(absl::StrCat("a trace of ", open.size_bytes, " bytes: 1 to ",
                                                   kMaxTraceBytes, "; end phases more often")));
    return;
  }
  if (!session.trace_room) {
    SendTraceRoom(session, id, open.size_bytes);
    return;
  }
  session.connection->Pause();
  CloseTraceRoom(session, std::exchange(session.trace_room, UniqueFd()),
                 [this, id, size_bytes = open.size_bytes](PeerSession& found) {
                   SendTraceRoom(found, id, size_bytes);
                   found.connection->Resume();
                 });
}

void Server::SendTraceRoom(PeerSession& session, uint64_t id, int64_t size_bytes) {
  // Without pages: they come, and are charged to the client, as it writes.
  absl::StatusOr<UniqueFd> room =
      MakeSealedMemfd("gemini-trace-room", size_bytes, MemfdPages::kOnDemand);
  if (!room.ok()) {
    Refuse(session, id, room.status());
    return;
  }
  session.trace_room = *std::move(room);
  session.trace_room_bytes = size_bytes;
  session.connection->Send(EncodeTraceRoom(id), {session.trace_room.get()});
}

void Server::CloseTraceRoom(PeerSession& session, UniqueFd room,
                            absl::AnyInvocable<void(PeerSession&)> then) {
  // A job of the session: its lease is reclaimed, and it goes, only when the room is closed.
  ++session.worker_jobs;
  plans_->Drop(std::move(room), [this, session_id = session.id, then = std::move(then)]() mutable {
    loop_->Post([this, session_id, then = std::move(then)]() mutable {
      PeerSession& found = *Find(session_id);
      --found.worker_jobs;
      if (found.lease.has_value() && found.lease->reclaiming) {
        ContinueReclaim(found);
      } else if (found.connection != nullptr) {
        then(found);
      }
    });
  });
}

void Server::EndPlans(PeerSession& session) {
  UniqueFd room = std::exchange(session.trace_room, UniqueFd());
  if (session.plan_wait != nullptr) {
    // At most one of the two is there: MakePlan has taken the room, and nothing is read meanwhile.
    UniqueFd taken = std::exchange(session.plan_wait, nullptr)->Cancel();
    if (taken) room = std::move(taken);
  }
  if (room) CloseTraceRoom(session, std::move(room), [](PeerSession&) {});
}

void Server::Handle(PeerSession& session, uint64_t id, const MakePlanRequest& make) {
  const absl::Status refusal = CheckMakePlan(make, session);
  if (!refusal.ok()) {
    Refuse(session, id, refusal);
    return;
  }
  const Lease& lease = *session.lease;
  PlanTask task = {
      .wait = std::make_shared<PlanWait>(std::exchange(session.trace_room, UniqueFd())),
      .room_bytes = session.trace_room_bytes,
      .space = FirstSpaceName(session),
      .budget_bytes = {{make.device_bytes, lease.used[Tier::kHost], lease.used[Tier::kNvme]}},
      .chunk_bytes = make.chunk_bytes,
      .policy = {.kind = static_cast<PolicyKind>(make.policy),
                 .param_fraction = make.param_fraction,
                 .optimizer_fraction = make.optimizer_fraction},
      .measured = make.measured,
      .device_bandwidth = make.device_bandwidth};
  session.plan_wait = task.wait;
  session.connection->Pause();
  // Of no more than there is: sums stay far from overflow. A host arena has nothing beside chunks'
  // budget.
  const int64_t apart_bytes =
      stores_.device->slab_bytes() == 0
          ? 0
          : std::clamp<int64_t>(make.device_apart_bytes, 0, lease.granted[Tier::kDevice]);
  plans_->MakePlan(std::move(task), [this, session_id = session.id, id,
                                     apart_bytes](absl::StatusOr<MadePlan> plan) {
    loop_->Post([this, session_id, id, apart_bytes, plan = std::move(plan)]() mutable {
      PeerSession* found = Find(session_id);
      if (found == nullptr || found->connection == nullptr) {
        if (plan.ok()) plans_->Drop(std::move(plan->fd));
        return;
      }
      found->plan_refusal =
          plan.ok() ? "" : std::string(plan.status().message().substr(0, kMaxShownRefusalChars));
      if (!plan.ok()) {
        Refuse(*found, id, plan.status());
      } else {
        // Chunks take whole slabs of what is not apart.
        const int64_t grain_bytes = DeviceGrainBytes(*stores_.device);
        SetFloor(*found, plan->phase, RoundUp(plan->device_floor_bytes, grain_bytes) + apart_bytes,
                 grain_bytes);
        KeepInputs(*found, plan->phase, plan->inputs);
        found->connection->Send(EncodePlanReply(id, plan->size_bytes, plan->device_floor_bytes),
                                {plan->fd.get()});
      }
      found->connection->Resume();
    });
  });
}

void Server::Handle(PeerSession& session, uint64_t id, const FindTraceRequest& find) {
  TraceKey key = {.space = find.space.empty() ? FirstSpaceName(session) : find.space,
                  .phase = find.phase,
                  .tensors_hash = find.tensors_hash};
  session.connection->Pause();
  session.plan_wait = std::make_shared<PlanWait>();
  plans_->FindTrace(std::move(key), session.plan_wait,
                    [this, session_id = session.id, id](absl::StatusOr<FoundTrace> trace) {
                      loop_->Post([this, session_id, id, trace = std::move(trace)]() mutable {
                        PeerSession* found = Find(session_id);
                        if (found == nullptr || found->connection == nullptr) {
                          if (trace.ok()) plans_->Drop(std::move(trace->fd));
                          return;
                        }
                        if (!trace.ok()) {
                          Refuse(*found, id, trace.status());
                        } else {
                          std::vector<int> fds;
                          if (trace->fd) fds.push_back(trace->fd.get());
                          found->connection->Send(EncodeTraceReply(id, trace->size_bytes), fds);
                        }
                        found->connection->Resume();
                      });
                    });
}

void Server::Handle(PeerSession& session, uint64_t id, const FindPlanInputsRequest& find) {
  const NamedSpace found = FindSpace(find.space);
  if (found.opened == nullptr) {
    Refuse(session, id, NoSpace(find.space));
    return;
  }
  const auto inputs = found.session->plan_inputs.find(find.phase);
  if (inputs == found.session->plan_inputs.end()) {
    Refuse(session, id,
           absl::NotFoundError(
               absl::StrCat("no plan was made yet for phase '",
                            absl::CHexEscape(find.phase.substr(0, kMaxShownPhaseChars)),
                            "' of the job of space ", find.space)));
    return;
  }
  session.connection->Send(EncodePlanInputsReply(id, inputs->second), {});
}

}  // namespace gemini::server
