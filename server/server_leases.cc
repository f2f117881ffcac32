// SPDX-License-Identifier: Apache-2.0
// The requests of server/server.h about leases: who gets which budgets, who gives way on DEVICE for
// a newcomer, and who grows when one leaves. This comes to an end, whatever others do: somebody is
// asked only for a newcomer that waits. While one waits, targets only fall, and none below its
// floor; a newcomer is answered once, when its timer has run at the latest. Growing back takes what
// is free when nobody waits: nobody is asked for it.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "server/leases/budget_shares.h"
#include "server/leases/device_grant.h"
#include "server/loop/server_log.h"
#include "server/server.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {
namespace {

LeaseSegmentShm& SegmentOf(const Lease& lease) {
  return *reinterpret_cast<LeaseSegmentShm*>(lease.segment_map.data());
}

struct MadeLease {
  TierGrant arena;
  ServerWritableMemfd segment;
  UniqueFd timeline;
  MappedMemory timeline_map;
};

// For a worker. On an error nothing is held. `arena_bytes`: what it may grow to.
absl::StatusOr<MadeLease> MakeLease(TierStore& device, int64_t arena_bytes) {
  MadeLease made;
  absl::StatusOr<ServerWritableMemfd> segment =
      MakeServerWritableMemfd("gemini-lease-segment", sizeof(LeaseSegmentShm));
  if (!segment.ok()) return segment.status();
  made.segment = *std::move(segment);
  // Without pages: they come, and are charged to the client, as it writes.
  GEMINI_ASSIGN_OR_RETURN(made.timeline, MakeSealedMemfd("gemini-timeline", sizeof(TimelineShm),
                                                         MemfdPages::kOnDemand));
  GEMINI_ASSIGN_OR_RETURN(
      made.timeline_map,
      MappedMemory::Map(made.timeline.get(), sizeof(TimelineShm), MappedMemory::Access::kReadOnly));
  absl::StatusOr<TierGrant> arena = MakeDeviceGrant(device, arena_bytes);
  if (!arena.ok()) return arena.status();
  made.arena = *std::move(arena);
  return made;
}

}  // namespace

std::string Server::NamedHolder(const PeerSession& session) const {
  const bool stopped = !session.embedded() && stopped_processes_.Contains(session.peer.pid);
  return absl::StrCat("'", session.label, "' (pid ", session.peer.pid, ", ",
                      FormatByteSize(session.lease->granted[Tier::kDevice]),
                      stopped ? ", stopped)" : ")");
}

// Whether what its client does with an epoch can still be waited for.
bool Server::AnswersEpochs(const PeerSession& session) const {
  return session.lease.has_value() && session.lease->takes_epochs && !session.lease->fenced &&
         !session.lease->reclaiming && session.connection != nullptr &&
         (session.embedded() || !stopped_processes_.Contains(session.peer.pid));
}

void Server::Handle(PeerSession& session, uint64_t id, const OpenLeaseRequest& open) {
  absl::Status refusal;
  for (Tier tier : kAllTiers) {
    if (open.floor[tier] < 0 || open.want[tier] < open.floor[tier]) {
      refusal = absl::InvalidArgumentError(absl::StrCat("a lease with ", TierName(tier), " want ",
                                                        open.want[tier], ", floor ",
                                                        open.floor[tier], ": 0 <= floor <= want"));
    }
  }
  if (session.role != PeerRole::kTrainer) {
    refusal = absl::FailedPreconditionError("an observer opens no lease");
  } else if (session.lease.has_value()) {
    refusal = absl::FailedPreconditionError("the session has a lease already");
  } else if (draining_) {
    refusal = absl::UnavailableError("the server is draining: it gives no new leases");
  }
  if (!refusal.ok()) {
    Refuse(session, id, refusal);
    return;
  }
  WaitingLease lease = {.session = session.id, .request = id, .want = open};
  if (const int64_t grain_bytes = DeviceGrainBytes(*stores_.device); grain_bytes > kPageBytes) {
    // Nobody has a part of a slab. A floor beyond the capacity is refused as it is.
    const int64_t capacity_bytes = budgets_.tier(Tier::kDevice).capacity_bytes;
    int64_t& floor_bytes = lease.want.floor[Tier::kDevice];
    int64_t& want_bytes = lease.want.want[Tier::kDevice];
    if (floor_bytes <= capacity_bytes) floor_bytes = RoundUp(floor_bytes, grain_bytes);
    want_bytes = std::max(floor_bytes, RoundUp(std::min(want_bytes, capacity_bytes), grain_bytes));
  }
  session.connection->Pause();
  // Those that came before are tried first.
  if (retry_posted_ || !TryLease(lease, {})) waiting_leases_.push_back(std::move(lease));
}

absl::Status Server::NoRoom(Tier tier, const OpenLeaseRequest& open) const {
  const TierBudget budget = budgets_.tier(tier);
  std::string message = absl::StrCat("needs ", FormatByteSize(open.floor[tier]), " of ",
                                     TierName(tier), ", ", FormatByteSize(budget.free_bytes()),
                                     " of ", FormatByteSize(budget.capacity_bytes), " free: ");
  const PeerSession* biggest = nullptr;
  for (const auto& [id, session] : sessions_) {
    if (!session->lease.has_value() || session->lease->reclaiming) continue;
    if (session->lease->granted[tier] == 0) continue;
    if (biggest == nullptr || session->lease->granted[tier] > biggest->lease->granted[tier]) {
      biggest = session.get();
    }
  }
  if (open.floor[tier] > budget.capacity_bytes || biggest == nullptr) {
    absl::StrAppend(&message, "ask for less, or give the server more");
    if (tier == Tier::kHost) absl::StrAppend(&message, ", or pass --nvme");
    return absl::ResourceExhaustedError(message);
  }
  absl::StrAppend(&message, "ask for less, or close job '", biggest->label, "' (pid ",
                  biggest->peer.pid, ", ", FormatByteSize(biggest->lease->granted[tier]));
  if (biggest->lease->fenced) absl::StrAppend(&message, ", hung up but still alive");
  if (!biggest->embedded() && stopped_processes_.Contains(biggest->peer.pid)) {
    absl::StrAppend(&message, ", stopped");
  }
  absl::StrAppend(&message, ")");
  return absl::ResourceExhaustedError(message);
}

absl::Status Server::NobodyAnswered(const OpenLeaseRequest& open) const {
  std::vector<std::string> silent;
  for (const auto& [id, session] : sessions_) {
    if (!session->lease.has_value() || session->lease->reclaiming) continue;
    if (session->lease->device_target < session->lease->granted[Tier::kDevice]) {
      silent.push_back(NamedHolder(*session));
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      NoRoom(Tier::kDevice, open).message(), "; asked to give way and did not answer within ",
      absl::FormatDuration(options_.epoch_timeout), ": ",
      silent.empty() ? "nobody" : absl::StrJoin(silent, ", ")));
}

DeviceSupply Server::FindDeviceSupply() const {
  const TierBudget device = budgets_.tier(Tier::kDevice);
  DeviceSupply supply;
  supply.coming_bytes = device.free_bytes() + device.reclaiming_bytes;
  for (const auto& [id, session] : sessions_) {
    if (!AnswersEpochs(*session)) continue;
    const Lease& lease = *session->lease;
    const BudgetShare share = {
        .session = id,
        .granted_bytes = lease.device_target,
        .floor_bytes = std::min(lease.floor[Tier::kDevice], lease.device_target)};
    supply.coming_bytes += lease.granted[Tier::kDevice] - lease.device_target;
    supply.slack_bytes += share.granted_bytes - share.floor_bytes;
    // A lease that is still being made can be asked once it is.
    if (lease.segment_map.data() != nullptr) supply.shares.push_back(share);
  }
  return supply;
}

DevicePromise Server::PromiseDevice(const WaitingLease& waiting,
                                    const std::deque<WaitingLease>& later,
                                    const DeviceSupply& supply) const {
  const int64_t capacity_bytes = budgets_.tier(Tier::kDevice).capacity_bytes;
  const auto wants_some = [](const WaitingLease& lease) {
    return lease.want.want[Tier::kDevice] > 0;
  };
  int64_t num_jobs = 1 + std::ranges::count_if(waiting_leases_, wants_some) +
                     std::ranges::count_if(later, wants_some);
  for (const auto& [id, session] : sessions_) {
    if (!session->lease.has_value() || session->lease->reclaiming) continue;
    if (session->lease->want[Tier::kDevice] > 0) ++num_jobs;
  }
  DevicePromise promise;
  const int64_t grain_bytes = DeviceGrainBytes(*stores_.device);
  promise.fair_bytes = capacity_bytes / num_jobs / grain_bytes * grain_bytes;
  std::vector<Newcomer> newcomers;
  const auto add = [&](const WaitingLease& lease) {
    const int64_t floor_bytes = lease.want.floor[Tier::kDevice];
    newcomers.push_back({.floor_bytes = floor_bytes,
                         .target_bytes = std::min(lease.want.want[Tier::kDevice],
                                                  std::max(floor_bytes, promise.fair_bytes))});
  };
  for (const WaitingLease& lease : waiting_leases_) {
    if (lease.asked) add(lease);
  }
  const size_t own = newcomers.size();
  add(waiting);
  for (const WaitingLease& lease : later) {
    if (lease.asked) add(lease);
  }
  const std::vector<int64_t> promised =
      Promises(newcomers, supply.coming_bytes + supply.slack_bytes);
  promise.fits = !promised.empty();
  for (size_t i = 0; i < newcomers.size(); ++i) {
    const int64_t bytes = promise.fits ? promised[i] : newcomers[i].floor_bytes;
    if (i == own) {
      promise.own_bytes = bytes;
    } else {
      promise.others_bytes += bytes;
      promise.others_floor_bytes += newcomers[i].floor_bytes;
    }
  }
  return promise;
}

void Server::EndWait(WaitingLease& waiting) {
  if (waiting.timer.has_value()) loop_->Cancel(*std::exchange(waiting.timer, std::nullopt));
}

bool Server::TryLease(WaitingLease& waiting, const std::deque<WaitingLease>& later) {
  PeerSession& session = *Find(waiting.session);
  const OpenLeaseRequest& open = waiting.want;
  const auto refuse = [&](const absl::Status& status) {
    EndWait(waiting);
    Refuse(session, waiting.request, status);
    session.connection->Resume();
    return true;
  };
  const DeviceSupply supply = FindDeviceSupply();
  const DevicePromise promise = PromiseDevice(waiting, later, supply);
  TierMap<int64_t> granted;
  for (Tier tier : kAllTiers) {
    const TierBudget budget = budgets_.tier(tier);
    // What others gave way for is not there for those who came later.
    const int64_t reserved = tier == Tier::kDevice ? promise.others_bytes : 0;
    granted[tier] = std::min(open.want[tier], std::max<int64_t>(0, budget.free_bytes() - reserved));
    // Bytes on their way back come within a time that only depends on the kernel: worth the wait,
    // as when a trainer is started again right after it was killed.
    const int64_t soon =
        std::max<int64_t>(0, budget.free_bytes() + budget.reclaiming_bytes - reserved);
    const bool worth_waiting = std::min(open.want[tier], soon) > granted[tier];
    if (worth_waiting && soon >= open.floor[tier]) return false;
  }
  for (Tier tier : {Tier::kHost, Tier::kNvme}) {
    if (granted[tier] < open.floor[tier]) return refuse(NoRoom(tier, open));
  }
  int64_t& device_bytes = granted[Tier::kDevice];
  if (device_bytes >= promise.own_bytes) {
    // What came beside its part goes to those who gave way for it, and to it: see GrowBack.
    if (waiting.asked && open.takes_epochs) device_bytes = promise.own_bytes;
  } else if (waiting.asked && !waiting.timer.has_value()) {
    const int64_t free_bytes = budgets_.tier(Tier::kDevice).free_bytes();
    device_bytes = std::max(device_bytes,
                            std::min(promise.own_bytes, free_bytes - promise.others_floor_bytes));
    if (device_bytes < open.floor[Tier::kDevice]) return refuse(NobodyAnswered(open));
  } else if (!promise.fits) {
    return refuse(NoRoom(Tier::kDevice, open));
  } else {
    AskToGiveWay(waiting, promise, supply);
    return false;
  }
  EndWait(waiting);
  BeginLease(session, waiting.request, open, granted);
  return true;
}

void Server::BeginLease(PeerSession& session, uint64_t request, const OpenLeaseRequest& open,
                        const TierMap<int64_t>& granted) {
  GEMINI_CHECK(budgets_.Lease(granted).ok());
  session.lease.emplace();
  Lease& lease = *session.lease;
  lease.id = next_id_++;
  lease.want = open.want;
  const int64_t capacity_bytes = budgets_.tier(Tier::kDevice).capacity_bytes;
  lease.want[Tier::kDevice] = std::min(open.want[Tier::kDevice], capacity_bytes);
  lease.granted = granted;
  lease.floor = open.floor;
  lease.takes_epochs = open.takes_epochs;
  lease.device_target = granted[Tier::kDevice];
  session.connection->Pause();
  ++session.worker_jobs;
  // Room to grow is addresses alone: pages come as they are touched, slabs as they are asked for.
  lease.arena_bytes =
      RoundUp(lease.takes_epochs ? lease.want[Tier::kDevice] : granted[Tier::kDevice],
              DeviceGrainBytes(*stores_.device));
  RunJob(Tier::kDevice, [this, session_id = session.id, request, arena_bytes = lease.arena_bytes] {
    absl::StatusOr<MadeLease> made = MakeLease(*stores_.device, arena_bytes);
    loop_->Post([this, session_id, request, made = std::move(made)]() mutable {
      PeerSession& found = *Find(session_id);  // A session with a job is never erased.
      --found.worker_jobs;
      if (made.ok()) {
        found.lease->arena = std::move(made->arena);
        found.lease->segment = std::move(made->segment.fd);
        found.lease->segment_map = std::move(made->segment.memory);
        found.lease->timeline = std::move(made->timeline);
        found.lease->timeline_map = std::move(made->timeline_map);
      }
      FinishLease(found, request, made.status());
    });
  });
}

void Server::FinishLease(PeerSession& session, uint64_t request, const absl::Status& made) {
  Lease& lease = *session.lease;
  if (lease.reclaiming) {
    ContinueReclaim(session);
    return;
  }
  if (session.connection == nullptr) {
    // It hung up before it knew of its lease, so nothing of it can be mapped anywhere.
    Fence(session, "it hung up before its lease was made");
    BeginReclaim(session);
    return;
  }
  if (!made.ok()) {
    // Answered, and read from again, once the budgets have it all back.
    lease.refusal = Lease::RefusalShown{request, made};
    BeginReclaim(session);
    return;
  }
  SegmentOf(lease).generation.store(lease.generation, std::memory_order_release);
  SegmentOf(lease).device_bytes[0].store(lease.device_target, std::memory_order_release);
  LeaseAnswer answer = {.lease = lease.id,
                        .generation = lease.generation,
                        .granted = lease.granted,
                        .device_arena_bytes = lease.arena_bytes,
                        .device_slab_bytes = stores_.device->slab_bytes(),
                        .device_gpu_uuid = stores_.device->gpu_uuid(),
                        .device_is_counted = !stores_.device->shares_memory()};
  std::vector<int> fds = {lease.segment.get(), lease.timeline.get()};
  for (const TierExtent& extent : lease.arena.extents) {
    if (fds.size() < kMaxMessageFds) fds.push_back(extent.fd.get());
  }
  ServerLog().info(
      "lease {} for session {} '{}' (pid {}): DEVICE {}, HOST {}, NVME {}", lease.id, session.id,
      session.label, session.peer.pid, FormatByteSize(lease.granted[Tier::kDevice]),
      FormatByteSize(lease.granted[Tier::kHost]), FormatByteSize(lease.granted[Tier::kNvme]));
  session.connection->Send(EncodeLeaseReply(request, answer), fds);
  lease.timeline.Reset();
  session.connection->Resume();
  RetryWaitingLeases();  // Those that came while it was made may now have it give way.
}

void Server::RetryWaitingLeases() {
  if (std::exchange(retry_posted_, true)) return;
  loop_->Post([this] {
    retry_posted_ = false;
    TryWaitingLeases();
  });
}

void Server::TryWaitingLeases() {
  std::deque<WaitingLease> waiting = std::exchange(waiting_leases_, {});
  while (!waiting.empty()) {
    WaitingLease lease = std::move(waiting.front());
    waiting.pop_front();
    if (!TryLease(lease, waiting)) waiting_leases_.push_back(std::move(lease));
  }
  GrowBack();
}

void Server::DropWaitingLease(uint64_t session) {
  const auto found =
      std::find_if(waiting_leases_.begin(), waiting_leases_.end(),
                   [&](const WaitingLease& waiting) { return waiting.session == session; });
  if (found == waiting_leases_.end()) return;
  EndWait(*found);
  waiting_leases_.erase(found);
  RetryWaitingLeases();  // What was vacated for it may be what others wait for.
}

void Server::PostTarget(PeerSession& session, int64_t device_bytes) {
  Lease& lease = *session.lease;
  lease.device_target = device_bytes;
  lease.epoch = PostBudgetTarget(SegmentOf(lease), device_bytes);
  ServerLog().info("lease {} of session {} '{}': DEVICE {} of {} from epoch {} on", lease.id,
                   session.id, session.label, FormatByteSize(device_bytes),
                   FormatByteSize(lease.want[Tier::kDevice]), lease.epoch);
}

void Server::AskToGiveWay(WaitingLease& waiting, const DevicePromise& promise,
                          const DeviceSupply& supply) {
  const int64_t needed_bytes = promise.own_bytes + promise.others_bytes - supply.coming_bytes;
  if (needed_bytes > 0) {
    // For a floor as few are disturbed as can be; for a wish, those first who have more than their
    // part. Where the slack is in a lease that is still being made, nobody is asked before that.
    const bool is_wish = promise.own_bytes > waiting.want.floor[Tier::kDevice];
    const std::vector<NewShare> smaller =
        is_wish ? GiveWayFairly(supply.shares, needed_bytes, promise.fair_bytes)
                : GiveWay(supply.shares, needed_bytes);
    for (const NewShare& share : smaller) PostTarget(*Find(share.session), share.granted_bytes);
  }
  if (waiting.asked) return;
  waiting.asked = true;
  waiting.timer = loop_->After(options_.epoch_timeout,
                               [this, session = waiting.session] { EndWaitForAnswers(session); });
}

void Server::EndWaitForAnswers(uint64_t session_id) {
  const auto found =
      std::find_if(waiting_leases_.begin(), waiting_leases_.end(),
                   [&](const WaitingLease& waiting) { return waiting.session == session_id; });
  if (found == waiting_leases_.end()) return;
  found->timer.reset();
  RetryWaitingLeases();  // It has what is free now, or is refused.
}

void Server::GrowBack() {
  if (!waiting_leases_.empty() || draining_) return;
  std::vector<BudgetShare> shares;
  for (const auto& [id, session] : sessions_) {
    if (!AnswersEpochs(*session) || session->lease->segment_map.data() == nullptr) continue;
    const int64_t granted_bytes = session->lease->granted[Tier::kDevice];
    // Whoever was asked for a newcomer that is gone, and did not answer yet, keeps what it has.
    if (session->lease->device_target < granted_bytes) PostTarget(*session, granted_bytes);
    shares.push_back({.session = id,
                      .granted_bytes = granted_bytes,
                      .want_bytes = session->lease->want[Tier::kDevice]});
  }
  for (const NewShare& share : ShareOut(shares, FreeBytes()[Tier::kDevice])) {
    PeerSession& session = *Find(share.session);
    int64_t& granted_bytes = session.lease->granted[Tier::kDevice];
    // Its own before it is told.
    GEMINI_CHECK(budgets_.Lease({{share.granted_bytes - granted_bytes, 0, 0}}).ok());
    granted_bytes = share.granted_bytes;
    PostTarget(session, granted_bytes);
  }
}

void Server::Handle(PeerSession& session, uint64_t id, const AckEpochRequest& ack) {
  absl::Status refusal;
  if (!session.lease.has_value() || session.lease->fenced || session.lease->reclaiming ||
      session.lease->device_target >= session.lease->granted[Tier::kDevice]) {
    refusal = absl::FailedPreconditionError("no epoch of this session awaits an acknowledgement");
  } else if (ack.epoch > session.lease->epoch) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("epoch ", ack.epoch, " was not posted yet: ", session.lease->epoch, " was"));
  } else if (ack.epoch < session.lease->epoch) {
    refusal = absl::AbortedError(absl::StrCat("epoch ", ack.epoch, " is past, it is ",
                                              session.lease->epoch, ": read the target again"));
  } else if (ack.device_bytes < 0 || ack.device_bytes > session.lease->device_target) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("uses ", ack.device_bytes, " bytes of DEVICE where epoch ", ack.epoch,
                     " asks for at most ", session.lease->device_target));
  } else if (stores_.device->slab_bytes() > 0 &&
             session.lease->arena.size_bytes() > session.lease->device_target) {
    refusal = absl::FailedPreconditionError(absl::StrCat(
        "has ", session.lease->arena.extents.size(), " slabs of DEVICE where epoch ", ack.epoch,
        " leaves room for ", session.lease->device_target / stores_.device->slab_bytes(),
        ": keep fewer first"));
  }
  if (!refusal.ok()) {
    Refuse(session, id, refusal);
    return;
  }
  Lease& lease = *session.lease;
  TierMap<int64_t> freed = {};
  freed[Tier::kDevice] = lease.granted[Tier::kDevice] - lease.device_target;
  lease.granted[Tier::kDevice] = lease.device_target;
  budgets_.BeginReclaim(freed);
  session.connection->Pause();
  ++session.worker_jobs;
  auto free_rest = CutDeviceGrant(*stores_.device, lease.arena,
                                  RoundUp(lease.device_target, DeviceGrainBytes(*stores_.device)));
  RunJob(Tier::kDevice,
         [this, session_id = session.id, id, freed, free_rest = std::move(free_rest)] {
           free_rest();
           loop_->Post([this, session_id, id, freed] {
             PeerSession& found = *Find(session_id);
             --found.worker_jobs;
             budgets_.FinishReclaim(freed);
             if (found.lease->reclaiming) {
               ContinueReclaim(found);
             } else if (found.connection != nullptr) {
               found.connection->Send(EncodeDone(id), {});
               found.connection->Resume();
             }
             RetryWaitingLeases();
           });
         });
}

}  // namespace gemini::server
