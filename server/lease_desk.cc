// SPDX-License-Identifier: Apache-2.0
#include "server/lease_desk.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/shm/lease_shm.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/host_memory.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/status_macros.h"
#include "server/leases/device_grant.h"
#include "server/loop/server_log.h"
#include "server/reply_wire.h"
#include "server/tiers/peer_memory.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {
namespace {

LeaseSegmentShm& SegmentOf(const Lease& lease) {
  return *reinterpret_cast<LeaseSegmentShm*>(lease.segment_map.data());
}

std::string Amounts(const TierMap<int64_t>& bytes) {
  return absl::StrCat("DEVICE ", FormatByteSize(bytes[Tier::kDevice]), ", HOST ",
                      FormatByteSize(bytes[Tier::kHost]), ", NVME ",
                      FormatByteSize(bytes[Tier::kNvme]));
}

struct MadeLease {
  TierGrant arena;
  ServerWritableMemfd segment;
  UniqueFd timeline;
  PeerMemory timeline_map;
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
  GEMINI_ASSIGN_OR_RETURN(made.timeline_map,
                          PeerMemory::Map(made.timeline.get(), sizeof(TimelineShm)));
  absl::StatusOr<TierGrant> arena = MakeDeviceGrant(device, arena_bytes);
  if (!arena.ok()) return arena.status();
  made.arena = *std::move(arena);
  return made;
}

}  // namespace

LeaseDesk::LeaseDesk(const ServerOptions& options, TierStore& device, Sessions& sessions,
                     SpaceDesk& spaces, PlanDesk& plans, const DevicePromises& promises,
                     LeaseBook& book, std::function<void(PeerSession&)> lease_ended)
    : options_(options),
      device_(device),
      sessions_(sessions),
      spaces_(spaces),
      plans_(plans),
      promises_(promises),
      book_(book),
      lease_ended_(std::move(lease_ended)),
      admission_(
          book, DeviceGrainBytes(device),
          {.admit = [this](const WaitingLease& admitted) { Begin(admitted); },
           .refuse = [this](const WaitingLease& waiting,
                            Tier lacking) { Refuse(waiting, lacking); },
           .begin_patience = [this](uint64_t session) { BeginPatience(session); },
           .post_target = [this](uint64_t session) { PostTarget(session); },
           .is_stopped = [this](uint64_t session) { return IsStopped(*sessions_.Find(session)); },
           .device_room =
               [this](std::optional<uint64_t> newcomer) { return DeviceRoom(newcomer); }}) {}

int64_t LeaseDesk::DeviceRoom(std::optional<uint64_t> newcomer) const {
  // Any lease may be the one that grows.
  const bool charged_here =
      newcomer.has_value() ? sessions_.Find(*newcomer)->charged_here
                           : std::ranges::any_of(sessions_.all(), [](const auto& entry) {
                               return entry.second->charged_here && entry.second->lease.has_value();
                             });
  return promises_.DeviceRoom(memories_, promised_, charged_here);
}

void LeaseDesk::ReadRoom() {
  memories_ = ReadHostMemories();
  promised_ = promises_.Promised();
}

bool LeaseDesk::IsStopped(const PeerSession& session) const {
  return !session.embedded() && stopped_processes_.Contains(session.peer.pid);
}

absl::Status LeaseDesk::Handle(PeerSession& session, uint64_t id, const OpenLeaseRequest& open) {
  if (session.role != PeerRole::kTrainer) {
    return absl::FailedPreconditionError("an observer opens no lease");
  }
  if (session.lease.has_value()) {
    return absl::FailedPreconditionError("the session has a lease already");
  }
  if (draining_) {
    return absl::UnavailableError("the server is draining: it gives no new leases");
  }
  for (Tier tier : {Tier::kNvme, Tier::kHost, Tier::kDevice}) {
    if (open.floor[tier] < 0 || open.want[tier] < open.floor[tier]) {
      return absl::InvalidArgumentError(absl::StrCat("a lease with ", TierName(tier), " want ",
                                                     open.want[tier], ", floor ", open.floor[tier],
                                                     ": 0 <= floor <= want"));
    }
  }
  session.connection->Pause();
  session.charged_here = session.embedded() || SharesControlGroups(session.peer.pid);
  if (!retry_posted_) ReadRoom();
  // Those that came before are tried first.
  admission_.Open({.session = session.id,
                   .request = id,
                   .want = open.want,
                   .floor = open.floor,
                   .takes_epochs = open.takes_epochs},
                  /*later=*/retry_posted_);
  return absl::OkStatus();
}

std::string LeaseDesk::NoRoom(Tier tier, int64_t floor_bytes) const {
  const TierBudget budget = book_.tier(tier);
  std::string message = absl::StrCat("needs ", FormatByteSize(floor_bytes), " of ", TierName(tier),
                                     ", ", FormatByteSize(budget.free_bytes()), " of ",
                                     FormatByteSize(budget.capacity_bytes), " free: ");
  const PeerSession* biggest = nullptr;
  for (const auto& [id, terms] : book_.leases()) {
    if (terms.reclaiming || terms.granted[tier] == 0) continue;
    if (biggest == nullptr || terms.granted[tier] > biggest->lease->terms.granted[tier]) {
      biggest = sessions_.Find(id);
    }
  }
  if (floor_bytes > budget.capacity_bytes || biggest == nullptr) {
    return absl::StrCat(message, "ask for less, or give the server more",
                        tier == Tier::kHost ? ", or pass --nvme" : "");
  }
  const LeaseTerms& terms = biggest->lease->terms;
  return absl::StrCat(message, "ask for less, or close job '", biggest->label, "' (pid ",
                      biggest->peer.pid, ", ", FormatByteSize(terms.granted[tier]),
                      terms.fenced ? ", hung up but still alive" : "",
                      IsStopped(*biggest) ? ", stopped" : "", ")");
}

std::string LeaseDesk::NobodyAnswered() const {
  std::vector<std::string> silent;
  for (const auto& [id, terms] : book_.leases()) {
    if (terms.reclaiming || terms.device_target >= terms.granted[Tier::kDevice]) continue;
    const PeerSession& session = *sessions_.Find(id);
    silent.push_back(absl::StrCat("'", session.label, "' (pid ", session.peer.pid, ", ",
                                  FormatByteSize(terms.granted[Tier::kDevice]),
                                  IsStopped(session) ? ", stopped)" : ")"));
  }
  if (silent.empty()) return "";
  return absl::StrCat("; asked to give way and did not answer within ",
                      absl::FormatDuration(options_.epoch_timeout), ": ",
                      absl::StrJoin(silent, ", "));
}

PeerSession& LeaseDesk::EndPatience(uint64_t session_id) {
  PeerSession& session = *sessions_.Find(session_id);
  if (session.patience_timer.has_value()) {
    sessions_.loop().Cancel(*std::exchange(session.patience_timer, std::nullopt));
  }
  return session;
}

void LeaseDesk::BeginPatience(uint64_t session_id) {
  EndPatience(session_id).patience_timer =
      sessions_.loop().After(options_.epoch_timeout, [this, session_id] {
        sessions_.Find(session_id)->patience_timer.reset();
        if (admission_.EndPatience(session_id)) RetryWaiting();
      });
}

void LeaseDesk::Refuse(const WaitingLease& waiting, Tier lacking) {
  PeerSession& session = EndPatience(waiting.session);
  const int64_t floor_bytes = waiting.floor[lacking];
  std::string message = NoRoom(lacking, floor_bytes);
  if (lacking == Tier::kDevice) {
    // It may be the machine that has less than the budget says.
    const absl::Status room =
        promises_.CheckDevice(memories_, promised_, floor_bytes, session.charged_here);
    if (!room.ok() && floor_bytes <= book_.tier(lacking).free_bytes())
      message = std::string(room.message());
    // Where others were waited for, it is them that DEVICE was to come from.
    if (waiting.asked && waiting.patience_over) message += NobodyAnswered();
  }
  sessions_.Refuse(session, waiting.request, absl::ResourceExhaustedError(message));
  session.connection->Resume();
}

void LeaseDesk::Begin(const WaitingLease& admitted) {
  PeerSession& session = EndPatience(admitted.session);
  const LeaseTerms& terms = book_.leases().at(session.id);
  Lease& lease = session.lease.emplace(terms);
  lease.id = sessions_.NextId();
  promised_ += promises_.PromisedTo(session);  // Those that are tried after it find less.
  // Room to grow is addresses alone: pages come as they are touched, slabs as they are asked for.
  lease.arena_bytes =
      RoundUp(terms.takes_epochs ? terms.want[Tier::kDevice] : terms.granted[Tier::kDevice],
              DeviceGrainBytes(device_));
  sessions_.RunSessionJob(
      session, Tier::kDevice,
      [&device = device_, arena_bytes = lease.arena_bytes] {
        return MakeLease(device, arena_bytes);
      },
      [this, request = admitted.request](PeerSession& found, absl::StatusOr<MadeLease> made) {
        if (made.ok()) {
          found.lease->arena = std::move(made->arena);
          found.lease->segment = std::move(made->segment.fd);
          found.lease->segment_map = std::move(made->segment.memory);
          found.lease->timeline = std::move(made->timeline);
          found.lease->timeline_map = std::move(made->timeline_map);
          book_.SetMade(found.id);
        }
        Finish(found, request, made.status());
      });
}

void LeaseDesk::Finish(PeerSession& session, uint64_t request, const absl::Status& made) {
  Lease& lease = *session.lease;
  if (lease.terms.reclaiming) return;
  if (session.connection == nullptr) {
    // It hung up, and was fenced, before it knew of its lease: nothing of it can be mapped.
    BeginReclaim(session);
    return;
  }
  if (!made.ok()) {
    TakeBack(session, request, made);
    return;
  }
  SegmentOf(lease).generation.store(lease.generation, std::memory_order_release);
  SegmentOf(lease).device_bytes[0].store(lease.terms.device_target, std::memory_order_release);
  LeaseAnswer answer = {.lease = lease.id,
                        .generation = lease.generation,
                        .granted = lease.terms.granted,
                        .device_arena_bytes = lease.arena_bytes,
                        .device_slab_bytes = device_.slab_bytes(),
                        .device_gpu_uuid = device_.gpu_uuid(),
                        .device_is_counted = !device_.shares_memory()};
  std::vector<int> fds = {lease.segment.get(), lease.timeline.get()};
  for (const TierExtent& extent : lease.arena.extents) {
    if (fds.size() < kMaxMessageFds) fds.push_back(extent.fd.get());
  }
  ServerLog().info("lease {} for {}: {}", lease.id, Named(session), Amounts(lease.terms.granted));
  session.connection->Send(EncodeLeaseReply(request, answer), fds);
  lease.timeline.Reset();
  RetryWaiting();  // Those that came while it was made may now have it give way.
}

void LeaseDesk::RetryWaiting() {
  if (std::exchange(retry_posted_, true)) return;
  sessions_.loop().Post([this] {
    retry_posted_ = false;
    if (draining_) return;
    ReadRoom();
    admission_.TryWaiting();
  });
}

void LeaseDesk::DropWaiting(PeerSession& session) {
  if (!admission_.Drop(session.id)) return;
  EndPatience(session.id);
  RetryWaiting();  // What was vacated for it may be what others wait for.
}

void LeaseDesk::PostTarget(uint64_t session_id) {
  PeerSession& session = *sessions_.Find(session_id);
  Lease& lease = *session.lease;
  lease.epoch = PostBudgetTarget(SegmentOf(lease), lease.terms.device_target);
  ServerLog().info("lease {} of session {} '{}': DEVICE {} of {} from epoch {} on", lease.id,
                   session.id, session.label, FormatByteSize(lease.terms.device_target),
                   FormatByteSize(lease.terms.want[Tier::kDevice]), lease.epoch);
}

absl::Status LeaseDesk::Handle(PeerSession& session, uint64_t id, const AckEpochRequest& ack) {
  if (!session.holds_lease() ||
      session.lease->terms.device_target >= session.lease->terms.granted[Tier::kDevice]) {
    return absl::FailedPreconditionError("no epoch of this session awaits an acknowledgement");
  }
  Lease& lease = *session.lease;
  const int64_t target_bytes = lease.terms.device_target;
  if (ack.epoch > lease.epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("epoch ", ack.epoch, " was not posted yet: ", lease.epoch, " was"));
  }
  if (ack.epoch < lease.epoch) {
    return absl::AbortedError(absl::StrCat("epoch ", ack.epoch, " is past, it is ", lease.epoch,
                                           ": read the target again"));
  }
  if (ack.device_bytes < 0 || ack.device_bytes > target_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("uses ", ack.device_bytes,
                                                   " bytes of DEVICE where epoch ", ack.epoch,
                                                   " asks for at most ", target_bytes));
  }
  if (device_.slab_bytes() > 0 && lease.arena.size_bytes() > target_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "has ", lease.arena.extents.size(), " slabs of DEVICE where epoch ", ack.epoch,
        " leaves room for ", target_bytes / device_.slab_bytes(), ": keep fewer first"));
  }
  sessions_.RunSessionJob(
      session, Tier::kDevice,
      CutDeviceGrant(device_, lease.arena, RoundUp(target_bytes, DeviceGrainBytes(device_))),
      [this, id, vacated = book_.VacateDevice(session.id)](PeerSession& found) {
        book_.FinishVacating(vacated);
        if (found.answerable()) found.connection->Send(EncodeDone(id), {});
        RetryWaiting();
      });
  return absl::OkStatus();
}

void LeaseDesk::Fence(PeerSession& session, absl::string_view why) {
  Lease& lease = *session.lease;
  if (lease.terms.fenced) return;
  book_.Fence(session.id);
  ++lease.generation;
  if (lease.terms.made) {
    SegmentOf(lease).generation.store(lease.generation, std::memory_order_release);
  }
  spaces_.Fence(session);
  plans_.End(session);
  ServerLog().info("fenced lease {} of {}, generation {}: {}", lease.id, Named(session),
                   lease.generation, std::string(why));
}

void LeaseDesk::BeginReclaim(PeerSession& session) {
  book_.BeginReclaim(session.id);
  plans_.End(session);
  // Nobody uses them any more: a job that follows at once has its names, while these bytes go.
  spaces_.FreeNames(session);
  ContinueReclaim(session);
}

void LeaseDesk::ContinueReclaim(PeerSession& session) {
  if (session.worker_jobs > 0 || SpaceDesk::HasTransfers(session)) return;
  spaces_.DestroyAll(
      session,
      [&device = device_, arena = std::move(session.lease->arena)]() mutable {
        device.Destroy(std::move(arena));
      },
      [this](PeerSession& found) {
        ServerLog().info("lease {} of {} is free again: {}", found.lease->id, Named(found),
                         Amounts(found.lease->terms.granted));
        const std::optional<Lease::RefusalShown> refusal = std::move(found.lease->refusal);
        found.lease.reset();
        book_.FinishReclaim(found.id);
        RetryWaiting();
        if (refusal.has_value() && found.connection != nullptr) {
          sessions_.Refuse(found, refusal->request, refusal->status);
        }
        lease_ended_(found);
      });
}

void LeaseDesk::TakeBack(PeerSession& session, uint64_t request, const absl::Status& refusal) {
  // Answered, and read from again, once the book has it all back.
  session.connection->Pause();
  session.lease->refusal = Lease::RefusalShown{request, refusal};
  BeginReclaim(session);
}

void LeaseDesk::Drain() {
  draining_ = true;
  for (const WaitingLease& waiting : admission_.TakeWaiting()) {
    PeerSession& session = EndPatience(waiting.session);
    sessions_.Refuse(session, waiting.request, absl::UnavailableError("the server is draining"));
    session.connection->Resume();
  }
}

}  // namespace gemini::server
