// SPDX-License-Identifier: Apache-2.0
// All of a peer's numbers are checked here or in space_plan.cc before they enter any sum.
#include "server/space_desk.h"

#include <sys/epoll.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/protocol.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/check.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"
#include "server/reply_wire.h"
#include "server/tiers/tier_store_host.h"

namespace gemini::server {
namespace {

constexpr size_t kMaxShownNameChars = 128;
// A ChunkStatus takes up to 96 bytes: 512 fit a message.
constexpr int64_t kMaxListedChunks = 512;
// No client lives to write so many events; beyond it sums could overflow.
constexpr uint64_t kMaxWritten = uint64_t{1} << 62;

// A space on its way back to the machine.
struct LeavingSpace {
  SpacePlan plan;
  TierMap<int64_t> slots;
  SpaceMemory memory;
};

// Reads every bundle's words, so it is for a worker.
void LogCommits(const LeavingSpace& space, const std::string& dead) {
  const CommitSummary commits = SpaceReader(space.memory.client_map.data(), space.plan.num_bundles,
                                            space.plan.num_tensors, space.slots)
                                    .ReadCommits();
  ServerLog().info("space {} of dead {}: {} of {} bundles committed, steps {} to {}, {} invalid",
                   space.plan.name, dead, commits.committed, space.plan.num_bundles,
                   commits.min_step, commits.max_step, commits.invalid);
}

void AddSlabFds(const SpaceMemory& memory, std::vector<int>& fds) {
  for (const TierExtent& slab : memory.host.extents) fds.push_back(slab.fd.get());
}

}  // namespace

SpaceDesk::SpaceDesk(const ServerOptions& options, const ServerStores& stores,
                     const DevicePromises& promises, Sessions& sessions,
                     std::unique_ptr<NvmeIo> nvme_io, Handlers handlers)
    : options_(options),
      stores_(stores),
      promises_(promises),
      sessions_(sessions),
      handlers_(std::move(handlers)),
      nvme_io_(std::move(nvme_io)) {}

void SpaceDesk::RunJobOnForgotten(absl::Span<const int> slab_fds, WorkerThread::Job job) {
  nvme_io_->Forget(slab_fds, [&sessions = sessions_, job = std::move(job)]() mutable {
    sessions.RunJob(Tier::kHost, std::move(job));
  });
}

absl::Status SpaceDesk::Handle(PeerSession& session, uint64_t id, const OpenSpaceRequest& open) {
  if (!session.holds_lease()) {
    return absl::FailedPreconditionError("open a lease before a space");
  }
  if (session.spaces.size() >= kMaxSpacesPerSession) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has ", kMaxSpacesPerSession, " spaces, its limit"));
  }
  Lease& lease = *session.lease;
  TierMap<int64_t> left;
  for (Tier tier : kAllTiers) left[tier] = lease.terms.granted[tier] - lease.used[tier];
  GEMINI_ASSIGN_OR_RETURN(const SpacePlan plan, PlanSpace(open, left));
  const auto [holder, is_new] = names_.emplace(plan.name, session.id);
  if (!is_new) {
    const PeerSession& other = *sessions_.Find(holder->second);
    return absl::AlreadyExistsError(absl::StrCat("space ", plan.name, " is open in job '",
                                                 other.label, "' (pid ", other.peer.pid,
                                                 "): choose another name or close that job"));
  }
  const absl::StatusOr<PromisedDevice> promised = TakeRoom(lease, plan);
  if (!promised.ok()) {
    names_.erase(holder);
    return promised.status();
  }
  sessions_.RunSessionJob(
      session, Tier::kHost,
      [&stores = stores_, plan, promised = *promised] {
        return MakeSpaceMemory(plan, promised, *stores.host, *stores.nvme);
      },
      [this, id, plan](PeerSession& found, absl::StatusOr<SpaceMemory> memory) {
        if (memory.ok()) {
          FinishOpen(found, id, plan, *std::move(memory));
          return;
        }
        FreeName(found, plan.name);
        GiveRoomBack(*found.lease, plan);
        if (found.answerable()) sessions_.Refuse(found, id, memory.status());
      });
  return absl::OkStatus();
}

bool SpaceDesk::MemoryComesBack() const {
  return std::ranges::any_of(sessions_.all(), [](const auto& entry) {
    const PeerSession& session = *entry.second;
    return session.reclaiming() || std::ranges::any_of(session.spaces, [](const auto& opened) {
             return opened.second.closing;
           });
  });
}

absl::StatusOr<PromisedDevice> SpaceDesk::TakeRoom(Lease& lease, const SpacePlan& plan) {
  const int64_t max_segment_bytes = MaxSegmentBytes(stores_.host->capacity_bytes());
  if (plan.num_bundles > kMaxServerBundles - num_bundles_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "space ", plan.name, " has ", plan.num_bundles, " bundles, all spaces ", num_bundles_,
        " of ", kMaxServerBundles, ": use larger chunks or close another space"));
  }
  if (plan.segment_bytes() > max_segment_bytes - segment_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("space ", plan.name, " needs segments of ",
                     FormatByteSize(plan.segment_bytes()), ", all spaces have ",
                     FormatByteSize(segment_bytes_), " of ", FormatByteSize(max_segment_bytes),
                     ": use larger chunks, close another space, or give the "
                     "server more HOST (a 64th of it is for segments)"));
  }
  // Now both sides of the sum are of one time. Where memory is on its way back, most of it is there
  // when the worker that destroys it comes to this space, and what is promised has hardly changed.
  PromisedDevice promised = promises_.Promised();
  if (!MemoryComesBack()) {
    GEMINI_RETURN_IF_ERROR(CheckRoomFor(plan, promised));
    promised = {};
  }
  num_bundles_ += plan.num_bundles;
  segment_bytes_ += plan.segment_bytes();
  lease.used[Tier::kHost] += plan.host_bytes();
  lease.used[Tier::kNvme] += plan.nvme_bytes();
  return promised;
}

void SpaceDesk::GiveRoomBack(Lease& lease, const SpacePlan& plan) {
  num_bundles_ -= plan.num_bundles;
  segment_bytes_ -= plan.segment_bytes();
  lease.used[Tier::kHost] -= plan.host_bytes();
  lease.used[Tier::kNvme] -= plan.nvme_bytes();
  GEMINI_CHECK(num_bundles_ >= 0 && segment_bytes_ >= 0);
}

void SpaceDesk::FinishOpen(PeerSession& session, uint64_t request, const SpacePlan& plan,
                           SpaceMemory memory) {
  const uint64_t space_id = sessions_.NextId();
  Lease& lease = *session.lease;
  OpenedSpace& opened = session.spaces[space_id];
  opened.index = session.next_space_index;
  opened.space = std::make_unique<Space>(space_id, plan, std::move(memory),
                                         lease.arena_bytes / plan.chunk_bytes, lease.generation);
  opened.counts = opened.space->reader().CountUntouched();
  if (lease.terms.fenced) opened.space->Fence(lease.generation);
  if (!session.answerable()) return;  // Fenced: kept until its process is dead, or reclaimed.
  // By edges, for it is never read: by level the loop would turn for ever after the first kick.
  const absl::StatusOr<EventLoop::WatchId> watch =
      sessions_.loop().Watch(opened.space->memory().kick.get(), EPOLLIN | EPOLLET,
                             [this, ring = Ring{session.id, space_id}](uint32_t) {
                               QueueRing(ring, sessions_.Find(ring.session)->spaces.at(ring.space));
                             });
  if (!watch.ok()) {
    sessions_.Refuse(session, request, watch.status());
    Close(session, space_id);
    return;
  }
  opened.kick_watch = *watch;
  ++session.next_space_index;
  const SpaceMemory& made = opened.space->memory();
  std::vector<int> fds = {made.client_segment.get(), made.server_segment.get(), made.kick.get()};
  SpaceAnswer answer = {.space = space_id,
                        .generation = lease.generation,
                        .slots_per_slab = HostSlotsPerSlab(plan.chunk_bytes),
                        .num_slabs = static_cast<int64_t>(made.host.extents.size())};
  for (const TierExtent& slab : made.host.extents) {
    if (static_cast<int>(fds.size()) == kMaxMessageFds) break;
    fds.push_back(slab.fd.get());
    ++answer.slabs_sent;
  }
  session.connection->Send(EncodeSpaceReply(request, answer), fds);
}

absl::Status SpaceDesk::Handle(PeerSession& session, uint64_t id, const CloseSpaceRequest& close) {
  const auto found = session.spaces.find(close.space);
  if (found == session.spaces.end()) {
    return absl::NotFoundError(absl::StrCat("no space ", close.space, " here"));
  }
  OpenedSpace& opened = found->second;
  opened.close_request = id;
  opened.space->Fence(session.lease->generation + 1);
  nvme_io_->Cancel(session.id, close.space);
  session.connection->Pause();
  Close(session, close.space);
  return absl::OkStatus();
}

void SpaceDesk::TakeBack(PeerSession& session, uint64_t space_id) {
  const auto found = session.spaces.find(space_id);
  if (found == session.spaces.end() || found->second.closing) return;
  session.connection->Pause();
  Close(session, space_id);
}

void SpaceDesk::Close(PeerSession& session, uint64_t space_id) {
  OpenedSpace& opened = session.spaces.at(space_id);
  opened.closing = true;
  sessions_.loop().Unwatch(std::exchange(opened.kick_watch, 0));
  if (std::exchange(opened.ring_queued, false)) {
    std::erase_if(rings_, [&](const Ring& ring) { return ring.space == space_id; });
  }
  ContinueClose(session, space_id);
}

void SpaceDesk::ContinueClose(PeerSession& session, uint64_t space_id) {
  OpenedSpace& opened = session.spaces.at(space_id);
  if (opened.space->in_flight() > 0) return;
  opened.destroying = true;
  SpaceMemory memory = opened.space->TakeMemory();
  std::vector<int> slab_fds;
  AddSlabFds(memory, slab_fds);
  RunJobOnForgotten(slab_fds, sessions_.SessionJob(
                                  session,
                                  [&stores = stores_, memory = std::move(memory)]() mutable {
                                    DestroySpaceMemory(std::move(memory), *stores.host,
                                                       *stores.nvme);
                                  },
                                  [this, space_id](PeerSession& found) {
                                    const OpenedSpace& closed = found.spaces.at(space_id);
                                    const std::optional<uint64_t> request = closed.close_request;
                                    GiveRoomBack(*found.lease, closed.space->plan());
                                    FreeName(found, closed.space->plan().name);
                                    found.spaces.erase(space_id);
                                    if (found.answerable() && request.has_value()) {
                                      found.connection->Send(EncodeDone(*request), {});
                                    }
                                  }));
}

void SpaceDesk::FreeName(const PeerSession& session, const std::string& name) {
  const auto holder = names_.find(name);
  if (holder != names_.end() && holder->second == session.id) names_.erase(holder);
}

void SpaceDesk::FreeNames(const PeerSession& session) {
  std::erase_if(names_, [&](const auto& name) { return name.second == session.id; });
}

void SpaceDesk::Fence(PeerSession& session) {
  for (auto& [id, opened] : session.spaces) {
    if (opened.destroying) continue;
    opened.space->Fence(session.lease->generation);
    nvme_io_->Cancel(session.id, id);
    sessions_.loop().Unwatch(std::exchange(opened.kick_watch, 0));
    opened.ring_queued = false;
  }
  std::erase_if(rings_, [&](const Ring& ring) { return ring.session == session.id; });
}

bool SpaceDesk::HasTransfers(const PeerSession& session) {
  return std::ranges::any_of(
      session.spaces, [](const auto& opened) { return opened.second.space->in_flight() > 0; });
}

void SpaceDesk::DestroyAll(PeerSession& session, WorkerThread::Job also,
                           absl::AnyInvocable<void(PeerSession&)> done) {
  std::vector<LeavingSpace> leaving;
  std::vector<int> slab_fds;
  for (auto& [id, opened] : session.spaces) {
    const Space& space = *opened.space;
    leaving.push_back({space.plan(), space.slots(), opened.space->TakeMemory()});
    AddSlabFds(leaving.back().memory, slab_fds);
  }
  session.spaces.clear();
  const std::string dead = session.lease->owner_died ? Named(session) : "";
  auto destroy = [&stores = stores_, dead, leaving = std::move(leaving),
                  also = std::move(also)]() mutable {
    std::vector<SpacePlan> left;
    for (LeavingSpace& space : leaving) {
      if (!dead.empty()) LogCommits(space, dead);
      DestroySpaceMemory(std::move(space.memory), *stores.host, *stores.nvme);
      left.push_back(std::move(space.plan));
    }
    also();
    return left;
  };
  auto finish = [this, done = std::move(done)](PeerSession& found,
                                               const std::vector<SpacePlan>& left) mutable {
    for (const SpacePlan& plan : left) GiveRoomBack(*found.lease, plan);
    done(found);
  };
  RunJobOnForgotten(slab_fds, sessions_.SessionJob(session, std::move(destroy), std::move(finish)));
}

void SpaceDesk::QueueRing(Ring ring, OpenedSpace& opened) {
  if (!std::exchange(opened.ring_queued, true)) rings_.push_back(ring);
  PostTurn();
}

void SpaceDesk::PostTurn() {
  if (rings_.empty() || std::exchange(turn_posted_, true)) return;
  sessions_.loop().Post([this] {
    turn_posted_ = false;
    ServeRings();
  });
}

void SpaceDesk::ServeRings() {
  for (int visit = 0; visit < kRingVisitsPerTurn && !rings_.empty(); ++visit) {
    const Ring ring = rings_.front();
    rings_.pop_front();
    VisitRing(ring);
  }
  PostTurn();
}

void SpaceDesk::VisitRing(Ring ring) {
  // Whatever is fenced or closed left the queue.
  PeerSession& session = *sessions_.Find(ring.session);
  OpenedSpace& opened = session.spaces.at(ring.space);
  // The kick is watched by edges and never read: its other end is the client's, who could make a
  // read block. The client stores the tail before it kicks, so a request that is missed here has an
  // edge to come, which finds the ring outside the queue.
  opened.ring_queued = false;
  const absl::StatusOr<bool> has_more =
      opened.space->TakeRequests(kRequestsPerVisit, [&](Space::Transfer taken) {
        taken.transfer.tenant = ring.session;
        taken.transfer.space = ring.space;
        nvme_io_->Submit(taken.transfer, [this, ring, taken](const absl::Status& status) {
          sessions_.loop().Post([this, ring, taken, status] {
            FinishTransfer(ring.session, ring.space, taken, status);
          });
        });
      });
  if (!has_more.ok()) {
    ServerLog().warn("closed {}: {}", Named(session), has_more.status().ToString());
    if (session.connection != nullptr) handlers_.disconnect(session);
    return;
  }
  // Behind the others: a client may raise its tail as fast as requests are taken.
  if (*has_more) QueueRing(ring, opened);
}

void SpaceDesk::FinishTransfer(uint64_t session_id, uint64_t space_id, const Space::Transfer& taken,
                               const absl::Status& status) {
  // Neither is destroyed while a transfer is in flight.
  PeerSession& owner = *sessions_.Find(session_id);
  OpenedSpace& opened = owner.spaces.at(space_id);
  if (status.ok()) {
    if (taken.transfer.operation == IoOperation::kWrite) {
      handlers_.wrote(taken.nvme_place, taken.transfer.size_bytes);
    }
  } else if (!absl::IsAborted(status)) {  // Its client ended it, and no disk.
    ServerLog().error(
        "NVMe I/O of space {}, slot {}, in directory '{}' failed: {}; if it comes again, look at "
        "that disk (dmesg, smartctl) and start geminid without it",
        opened.space->plan().name, taken.nvme_slot,
        absl::CHexEscape(options_.nvme_directories[taken.nvme_place].path), status.ToString());
  }
  opened.space->Complete(taken, status.code());
  if (owner.reclaiming()) {
    sessions_.ReclaimIfDue(owner);
  } else if (opened.closing) {
    ContinueClose(owner, space_id);
  } else if (opened.space->HasRequests()) {
    QueueRing({session_id, space_id}, opened);  // The ring was full of requests in flight.
  }
}

absl::StatusOr<SpaceDesk::NamedSpace> SpaceDesk::FindSpace(const std::string& name) const {
  const auto holder = names_.find(name);
  if (holder != names_.end()) {
    PeerSession& session = *sessions_.Find(holder->second);
    for (auto& [space_id, opened] : session.spaces) {
      if (!opened.destroying && opened.space->plan().name == name) {
        return NamedSpace{session, opened};
      }
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no space '", absl::CHexEscape(name.substr(0, kMaxShownNameChars)), "'"));
}

absl::Status SpaceDesk::Handle(PeerSession& session, uint64_t id, const ListChunksRequest& list) {
  GEMINI_ASSIGN_OR_RETURN(const NamedSpace found, FindSpace(list.space));
  const Space& space = *found.opened.space;
  if (list.first < 0 || list.count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks from ", list.first, ", count ", list.count));
  }
  const int64_t num_chunks = space.plan().num_bundles * kNumChunkKinds;
  const int64_t first = std::min(list.first, num_chunks);
  session.connection->Send(
      EncodeChunksReply(
          id, {.num_chunks = num_chunks,
               .chunk_bytes = space.plan().chunk_bytes,
               .first = first,
               .chunks = space.reader().List(first, std::min(list.count, kMaxListedChunks))}),
      {});
  return absl::OkStatus();
}

absl::Status SpaceDesk::Handle(PeerSession& session, uint64_t id, const ReadTimelineRequest& read) {
  GEMINI_ASSIGN_OR_RETURN(const NamedSpace found, FindSpace(read.space));
  // A lease with a space was made whole. Events are copied, never the memory passed on: who may
  // look may not write.
  const auto& ring =
      *reinterpret_cast<const TimelineShm*>(found.session.lease->timeline_map.data());
  TimelineAnswer answer;
  answer.written = ring.written.load(std::memory_order_acquire);
  if (answer.written > kMaxWritten) answer.written = 0;
  const uint64_t oldest =
      answer.written < kTimelineEntries ? 1 : answer.written - kTimelineEntries + 1;
  const uint64_t first = std::min(std::max(read.first, oldest), answer.written + 1);
  answer.next = std::min(first + kMaxTimelineEvents, answer.written + 1);
  for (uint64_t number = first; number < answer.next; ++number) {
    const std::optional<TimelineEvent> event = ReadTimelineEvent(ring, number);
    if (event) answer.events.push_back({number, *event});
  }
  for (const auto& [space_id, opened] : found.session.spaces) {
    if (!opened.destroying) answer.spaces.emplace_back(opened.index, opened.space->plan().name);
  }
  session.connection->Send(EncodeTimelineReply(id, answer), {});
  return absl::OkStatus();
}

}  // namespace gemini::server
