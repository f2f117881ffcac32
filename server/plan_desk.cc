// SPDX-License-Identifier: Apache-2.0
#include "server/plan_desk.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/status_macros.h"
#include "server/leases/device_grant.h"
#include "server/reply_wire.h"
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

absl::Status CheckMakePlan(const MakePlanRequest& make, const PeerSession& session) {
  if (!session.holds_lease()) return absl::FailedPreconditionError("open a lease before a plan");
  if (!session.trace_room) {
    return absl::FailedPreconditionError("a plan needs a trace: OpenTrace, write it, MakePlan");
  }
  const int64_t granted_bytes = session.lease->terms.granted[Tier::kDevice];
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

}  // namespace

PlanDesk::PlanDesk(const ServerOptions& options, const TierStore& device, Sessions& sessions,
                   SpaceDesk& spaces, LeaseBook& book)
    : max_wait_(options.max_plan_wait),
      answer_life_(options.answer_life),
      device_(device),
      sessions_(sessions),
      spaces_(spaces),
      book_(book),
      service_(options) {}

template <typename Found, typename Send>
absl::AnyInvocable<void(absl::StatusOr<Found>)> PlanDesk::Answering(PeerSession& session,
                                                                    uint64_t id, Send send) {
  session.connection->Pause();
  CancelTimer(session);  // Of its answer before: the next one is made of that one's memory.
  session.plan_timer = sessions_.loop().After(
      max_wait_, [this, session_id = session.id, id, wait = session.plan_wait] {
        EndWaiting(session_id, id, wait);
      });
  return [this, session_id = session.id, id, send](absl::StatusOr<Found> found) {
    sessions_.loop().Post([this, session_id, id, send, found = std::move(found)]() mutable {
      PeerSession* const waiting = sessions_.Find(session_id);
      if (waiting == nullptr || waiting->connection == nullptr) {
        if (found.ok()) service_.Drop(std::move(found->fd));
        service_.TakeBackAnswer(session_id);
        return;
      }
      CancelTimer(*waiting);
      const absl::Status sent = send(*waiting, found);
      if (found.ok() && found->fd) {
        // End cancels it: the session is there when it fires.
        waiting->plan_timer = sessions_.loop().After(answer_life_, [this, session_id] {
          sessions_.Find(session_id)->plan_timer.reset();
          service_.TakeBackAnswer(session_id);
        });
      }
      if (!sent.ok()) sessions_.Refuse(*waiting, id, sent);
      waiting->connection->Resume();
    });
  };
}

void PlanDesk::EndWaiting(uint64_t session_id, uint64_t id, const std::shared_ptr<PlanWait>& wait) {
  PeerSession* const session = sessions_.Find(session_id);
  if (session == nullptr || session->plan_wait != wait) return;  // It has ended meanwhile.
  session->plan_timer.reset();
  std::optional<UniqueFd> room = wait->CancelUnlessBegun();
  if (!room.has_value()) return;  // Planning has a deadline of its own.
  session->plan_wait.reset();
  service_.TakeBackAnswer(session_id);  // An earlier one, whose timer this request replaced.
  const auto refuse = [this, id](PeerSession& waiting) {
    sessions_.Refuse(waiting, id,
                     absl::ResourceExhaustedError(absl::StrCat(
                         "the plans of other jobs took ", absl::FormatDuration(max_wait_),
                         " so far: chunks are placed on demand. Run fewer jobs at a time, or with "
                         "larger chunks; does the disk of --state-dir answer?")));
  };
  if (*room) {
    CloseTraceRoom(*session, *std::move(room), refuse);
    return;
  }
  refuse(*session);
  session->connection->Resume();
}

void PlanDesk::CancelTimer(PeerSession& session) {
  if (!session.plan_timer.has_value()) return;
  sessions_.loop().Cancel(*std::exchange(session.plan_timer, std::nullopt));
}

void PlanDesk::SetFloor(PeerSession& session, const std::string& phase,
                        int64_t device_floor_bytes) {
  if (!session.holds_lease() || !session.lease->terms.takes_epochs) return;
  int64_t& others = session.other_phases_floor;
  if (IsListed(session.phase_floors, phase)) {
    session.phase_floors[phase] = device_floor_bytes;
  } else {
    others = std::max(others, device_floor_bytes);
  }
  int64_t floor_bytes = others;
  for (const auto& [name, bytes] : session.phase_floors) floor_bytes = std::max(floor_bytes, bytes);
  // Shares of DEVICE are multiples of the grain because floors are.
  const int64_t granted_bytes = session.lease->terms.granted[Tier::kDevice];
  book_.SetDeviceFloor(
      session.id, std::min(RoundUp(std::min(floor_bytes, granted_bytes), DeviceGrainBytes(device_)),
                           granted_bytes));
}

absl::Status PlanDesk::Handle(PeerSession& session, uint64_t id, const OpenTraceRequest& open) {
  if (!session.holds_lease()) {
    return absl::FailedPreconditionError("open a lease before a trace");
  }
  if (open.size_bytes < 1 || open.size_bytes > kMaxTraceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a trace of ", open.size_bytes, " bytes: 1 to ",
                                                   kMaxTraceBytes, "; end phases more often"));
  }
  if (!session.trace_room) return SendTraceRoom(session, id, open.size_bytes);
  CloseTraceRoom(session, std::exchange(session.trace_room, UniqueFd()),
                 [this, id, size_bytes = open.size_bytes](PeerSession& found) {
                   const absl::Status sent = SendTraceRoom(found, id, size_bytes);
                   if (!sent.ok()) sessions_.Refuse(found, id, sent);
                 });
  return absl::OkStatus();
}

absl::Status PlanDesk::SendTraceRoom(PeerSession& session, uint64_t id, int64_t size_bytes) {
  // Without pages: they come, and are charged to the client, as it writes.
  GEMINI_ASSIGN_OR_RETURN(session.trace_room,
                          MakeSealedMemfd("gemini-trace-room", size_bytes, MemfdPages::kOnDemand));
  session.trace_room_bytes = size_bytes;
  session.connection->Send(EncodeTraceRoom(id), {session.trace_room.get()});
  return absl::OkStatus();
}

void PlanDesk::CloseTraceRoom(PeerSession& session, UniqueFd room,
                              absl::AnyInvocable<void(PeerSession&)> then) {
  // A job of the session: its lease is reclaimed, and it goes, only when the room is closed.
  service_.Drop(std::move(room), sessions_.SessionJob(
                                     session, [] {},
                                     [then = std::move(then)](PeerSession& found) mutable {
                                       if (found.answerable()) then(found);
                                     }));
}

void PlanDesk::End(PeerSession& session) {
  UniqueFd room = std::exchange(session.trace_room, UniqueFd());
  CancelTimer(session);
  if (session.plan_wait != nullptr) {
    // At most one of the two is there: MakePlan has taken the room, and nothing is read meanwhile.
    UniqueFd taken = std::exchange(session.plan_wait, nullptr)->Cancel();
    if (taken) room = std::move(taken);
  }
  service_.TakeBackAnswer(session.id);
  if (room) CloseTraceRoom(session, std::move(room), [](PeerSession&) {});
}

absl::Status PlanDesk::Handle(PeerSession& session, uint64_t id, const MakePlanRequest& make) {
  GEMINI_RETURN_IF_ERROR(CheckMakePlan(make, session));
  const Lease& lease = *session.lease;
  PlanTask task = {
      .wait = std::make_shared<PlanWait>(session.id, session.peer.pid,
                                         std::exchange(session.trace_room, UniqueFd())),
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
  // Of no more than there is: sums stay far from overflow. A host arena has nothing beside chunks'
  // budget.
  const int64_t apart_bytes =
      device_.slab_bytes() == 0
          ? 0
          : std::clamp<int64_t>(make.device_apart_bytes, 0, lease.terms.granted[Tier::kDevice]);
  const auto send = [this, id, apart_bytes](PeerSession& found,
                                            const absl::StatusOr<MadePlan>& plan) {
    found.plan_refusal = std::string(plan.status().message().substr(0, kMaxShownRefusalChars));
    GEMINI_RETURN_IF_ERROR(plan.status());
    // Chunks take whole slabs of what is not apart.
    SetFloor(found, plan->phase,
             RoundUp(plan->device_floor_bytes, DeviceGrainBytes(device_)) + apart_bytes);
    if (IsListed(found.plan_inputs, plan->phase)) found.plan_inputs[plan->phase] = plan->inputs;
    found.connection->Send(EncodePlanReply(id, plan->size_bytes, plan->device_floor_bytes),
                           {plan->fd.get()});
    return absl::OkStatus();
  };
  service_.MakePlan(std::move(task), Answering<MadePlan>(session, id, send));
  return absl::OkStatus();
}

absl::Status PlanDesk::Handle(PeerSession& session, uint64_t id, const FindTraceRequest& find) {
  TraceKey key = {.space = find.space.empty() ? FirstSpaceName(session) : find.space,
                  .phase = find.phase,
                  .tensors_hash = find.tensors_hash};
  session.plan_wait = std::make_shared<PlanWait>(session.id, session.peer.pid);
  const auto send = [id](PeerSession& found, const absl::StatusOr<FoundTrace>& trace) {
    GEMINI_RETURN_IF_ERROR(trace.status());
    std::vector<int> fds;
    if (trace->fd) fds.push_back(trace->fd.get());
    found.connection->Send(EncodeTraceReply(id, trace->size_bytes), fds);
    return absl::OkStatus();
  };
  service_.FindTrace(std::move(key), session.plan_wait, Answering<FoundTrace>(session, id, send));
  return absl::OkStatus();
}

absl::Status PlanDesk::Handle(PeerSession& session, uint64_t id,
                              const FindPlanInputsRequest& find) {
  GEMINI_ASSIGN_OR_RETURN(const SpaceDesk::NamedSpace found, spaces_.FindSpace(find.space));
  const auto inputs = found.session.plan_inputs.find(find.phase);
  if (inputs == found.session.plan_inputs.end()) {
    return absl::NotFoundError(
        absl::StrCat("no plan was made yet for phase '",
                     absl::CHexEscape(find.phase.substr(0, kMaxShownPhaseChars)),
                     "' of the job of space ", find.space));
  }
  session.connection->Send(EncodePlanInputsReply(id, inputs->second), {});
  return absl::OkStatus();
}

}  // namespace gemini::server
