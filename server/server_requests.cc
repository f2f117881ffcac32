// SPDX-License-Identifier: Apache-2.0
// The requests of server/server.h: one function each. All of a peer's numbers are checked here or
// in space_plan.cc before they enter any sum.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/protocol.h"
#include "gemini/system/check.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/seqpacket.h"
#include "server/loop/server_log.h"
#include "server/server.h"
#include "server/tiers/tier_store_host.h"

namespace gemini::server {
namespace {

constexpr size_t kMaxLabelChars = 128;
// Bounds the status message and the descriptors of one tenant.
constexpr size_t kMaxSpacesPerSession = 64;
// A ChunkStatus takes up to 96 bytes: 512 fit a message.
constexpr int64_t kMaxListedChunks = 512;

std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, kMaxLabelChars));
}

absl::Duration ThreadTime() {
  timespec used = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

}  // namespace

void Server::Refuse(PeerSession& session, uint64_t request, const absl::Status& status) {
  ServerLog().warn("refused a request of session {} '{}' (pid {}): {}", session.id, session.label,
                   session.peer.pid, status.ToString());
  session.connection->Send(EncodeRefusal(request, status), {});
}

TierMap<int64_t> Server::FreeBytes() const {
  TierMap<int64_t> free;
  for (Tier tier : kAllTiers) free[tier] = budgets_.tier(tier).free_bytes();
  return free;
}

void Server::Handle(PeerSession& session, uint64_t id, const HelloRequest& hello) {
  session.label = Shown(hello.label);
  absl::Status refusal;
  if (hello.protocol != kProtocolVersion) {
    refusal = absl::FailedPreconditionError(absl::StrCat(
        "this server speaks protocol ", kProtocolVersion, " (", options_.build, "), you speak ",
        hello.protocol, " (", Shown(hello.build), "): use the same version on both sides"));
  } else if (hello.label.size() > kMaxLabelChars) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("a label of ", hello.label.size(), " characters, at most ", kMaxLabelChars));
  } else if (std::count_if(sessions_.begin(), sessions_.end(), [](const auto& entry) {
               return entry.second->said_hello && !entry.second->kept_for_process();
             }) >= kMaxSessions) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the server has ", kMaxSessions, " sessions, its limit: close some"));
  } else if (std::ranges::count_if(sessions_, [&](const auto& entry) {
               return entry.second->kept_for_process() &&
                      entry.second->peer.pid == session.peer.pid;
             }) >= kMaxHungUpSessions) {
    refusal = absl::ResourceExhaustedError(absl::StrCat(
        "pid ", session.peer.pid, " hung up on ", kMaxHungUpSessions,
        " sessions without closing them, and their memory is kept until it ends: end it, "
        "and close sessions"));
  } else if (hello.role == PeerRole::kUnknown) {
    refusal = absl::InvalidArgumentError("a hello without a role: trainer or observer");
  } else if (draining_) {
    refusal = absl::UnavailableError("the server is draining: it takes no new sessions");
  }
  loop_->Cancel(*std::exchange(session.hello_timer, std::nullopt));
  if (!refusal.ok()) {
    Refuse(session, id, refusal);
    session.connection->CloseAfterSend();
    return;
  }
  session.said_hello = true;
  session.role = hello.role;
  HelloAnswer answer;
  answer.build = options_.build;
  answer.session = session.id;
  answer.free = FreeBytes();
  for (Tier tier : kAllTiers) answer.capacity[tier] = budgets_.tier(tier).capacity_bytes;
  session.connection->Send(EncodeHelloReply(id, answer), {});
}

void Server::Handle(PeerSession& session, uint64_t id, const OpenSpaceRequest& open) {
  if (!session.lease.has_value() || session.lease->fenced || session.lease->reclaiming) {
    Refuse(session, id, absl::FailedPreconditionError("open a lease before a space"));
    return;
  }
  if (session.spaces.size() >= kMaxSpacesPerSession) {
    Refuse(session, id,
           absl::ResourceExhaustedError(
               absl::StrCat("the session has ", kMaxSpacesPerSession, " spaces, its limit")));
    return;
  }
  Lease& lease = *session.lease;
  TierMap<int64_t> left;
  for (Tier tier : kAllTiers) left[tier] = lease.granted[tier] - lease.used[tier];
  absl::StatusOr<SpacePlan> plan = PlanSpace(open, left);
  if (!plan.ok()) {
    Refuse(session, id, plan.status());
    return;
  }
  const auto [holder, is_new] = space_names_.emplace(plan->name, session.id);
  if (!is_new) {
    const PeerSession& other = *Find(holder->second);
    Refuse(session, id,
           absl::AlreadyExistsError(absl::StrCat("space ", plan->name, " is open in job '",
                                                 other.label, "' (pid ", other.peer.pid,
                                                 "): choose another name or close that job")));
    return;
  }
  const absl::Status room = TakeRoom(lease, *plan);
  if (!room.ok()) {
    space_names_.erase(holder);
    Refuse(session, id, room);
    return;
  }
  session.connection->Pause();
  ++session.worker_jobs;
  RunJob(Tier::kHost, [this, session_id = session.id, id, plan = *std::move(plan)]() mutable {
    absl::StatusOr<SpaceMemory> memory = MakeSpaceMemory(plan, *stores_.host, *stores_.nvme);
    loop_->Post(
        [this, session_id, id, plan = std::move(plan), memory = std::move(memory)]() mutable {
          PeerSession& found = *Find(session_id);
          --found.worker_jobs;
          if (memory.ok()) {
            FinishOpenSpace(found, id, plan, *std::move(memory));
            return;
          }
          FreeSpaceName(found, plan.name);
          GiveRoomBack(*found.lease, plan);
          if (found.lease->reclaiming) {
            ContinueReclaim(found);
          } else if (found.connection != nullptr) {
            Refuse(found, id, memory.status());
            found.connection->Resume();
          }
        });
  });
}

absl::Status Server::TakeRoom(Lease& lease, const SpacePlan& plan) {
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
  num_bundles_ += plan.num_bundles;
  segment_bytes_ += plan.segment_bytes();
  lease.used[Tier::kHost] += plan.host_bytes();
  lease.used[Tier::kNvme] += plan.nvme_bytes();
  return absl::OkStatus();
}

void Server::GiveRoomBack(Lease& lease, const SpacePlan& plan) {
  num_bundles_ -= plan.num_bundles;
  segment_bytes_ -= plan.segment_bytes();
  lease.used[Tier::kHost] -= plan.host_bytes();
  lease.used[Tier::kNvme] -= plan.nvme_bytes();
  GEMINI_CHECK(num_bundles_ >= 0 && segment_bytes_ >= 0);
}

void Server::FinishOpenSpace(PeerSession& session, uint64_t request, const SpacePlan& plan,
                             SpaceMemory memory) {
  const uint64_t space_id = next_id_++;
  Lease& lease = *session.lease;
  OpenedSpace& opened = session.spaces[space_id];
  opened.index = session.next_space_index;
  opened.space = std::make_unique<Space>(space_id, plan, std::move(memory),
                                         lease.arena_bytes / plan.chunk_bytes, lease.generation);
  if (lease.fenced) opened.space->Fence(lease.generation);
  if (lease.reclaiming) {
    ContinueReclaim(session);
    return;
  }
  if (session.connection == nullptr) return;  // Fenced: kept until its process is dead.
  // By edges, for it is never read: by level the loop would turn for ever after the first kick.
  const absl::StatusOr<EventLoop::WatchId> watch = loop_->Watch(
      opened.space->memory().kick.get(), EPOLLIN | EPOLLET,
      [this, session_id = session.id, space_id](uint32_t) { ServeRing(session_id, space_id); });
  if (!watch.ok()) {
    Refuse(session, request, watch.status());
    opened.closing = true;
    ContinueCloseSpace(session, space_id);
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
  session.connection->Resume();
}

void Server::Handle(PeerSession& session, uint64_t id, const CloseSpaceRequest& close) {
  const auto found = session.spaces.find(close.space);
  if (found == session.spaces.end()) {
    Refuse(session, id, absl::NotFoundError(absl::StrCat("no space ", close.space, " here")));
    return;
  }
  OpenedSpace& opened = found->second;
  opened.closing = true;
  opened.close_request = id;
  opened.space->Fence(session.lease->generation + 1);
  nvme_io_->Cancel(session.id, close.space);
  loop_->Unwatch(std::exchange(opened.kick_watch, 0));
  session.connection->Pause();
  ContinueCloseSpace(session, close.space);
}

void Server::ContinueCloseSpace(PeerSession& session, uint64_t space_id) {
  OpenedSpace& opened = session.spaces.at(space_id);
  if (opened.space->in_flight() > 0) return;
  opened.destroying = true;
  ++session.worker_jobs;
  SpaceMemory taken = opened.space->TakeMemory();
  std::vector<int> slab_fds;
  for (const TierExtent& slab : taken.host.extents) slab_fds.push_back(slab.fd.get());
  auto destroy = [this, session_id = session.id, space_id, memory = std::move(taken)]() mutable {
    DestroySpaceMemory(std::move(memory), *stores_.host, *stores_.nvme);
    loop_->Post([this, session_id, space_id] {
      PeerSession& found = *Find(session_id);
      --found.worker_jobs;
      const OpenedSpace& closed = found.spaces.at(space_id);
      const std::optional<uint64_t> request = closed.close_request;
      const SpacePlan plan = closed.space->plan();
      GiveRoomBack(*found.lease, plan);
      FreeSpaceName(found, plan.name);
      found.spaces.erase(space_id);
      if (found.lease->reclaiming) {
        ContinueReclaim(found);
      } else if (found.connection != nullptr) {
        if (request.has_value()) found.connection->Send(EncodeDone(*request), {});
        found.connection->Resume();
      }
    });
  };
  RunJobOnForgotten(slab_fds, std::move(destroy));
}

void Server::Handle(PeerSession& session, uint64_t id, const CloseSessionRequest&) {
  session.connection->Send(EncodeDone(id), {});
  if (session.lease.has_value() && !session.lease->reclaiming) {
    // The client has unmapped: its bytes may go to others without waiting for its death.
    Fence(session, "closed");
    BeginReclaim(session);
  }
  session.connection->CloseAfterSend();
}

void Server::ServeRing(uint64_t session_id, uint64_t space_id) {
  PeerSession* session = Find(session_id);
  if (session == nullptr) return;
  const auto found = session->spaces.find(space_id);
  if (found == session->spaces.end() || found->second.destroying) return;
  Space& space = *found->second.space;
  // The kick is watched by edges and never read: its other end is the client's, who could make a
  // read block. The client stores the tail before it kicks, so a request that is missed here has an
  // edge to come.
  for (int64_t taken = 0;; ++taken) {
    if (taken == kIoRingEntries) {
      // A client may raise its tail as fast as requests are taken: the others have their turn
      // first.
      if (std::exchange(found->second.serve_posted, true)) return;
      loop_->Post([this, session_id, space_id] {
        PeerSession* owner = Find(session_id);
        if (owner == nullptr) return;
        const auto opened = owner->spaces.find(space_id);
        if (opened == owner->spaces.end()) return;
        opened->second.serve_posted = false;
        ServeRing(session_id, space_id);
      });
      return;
    }
    absl::StatusOr<Space::Transfer> next = space.TakeRequest();
    if (next.status().code() == absl::StatusCode::kNotFound) return;
    if (next.status().code() == absl::StatusCode::kInvalidArgument ||
        next.status().code() == absl::StatusCode::kDataLoss) {
      continue;  // The client has its answer.
    }
    if (!next.ok()) {
      ServerLog().warn("closed session {} '{}' (pid {}): {}", session->id, session->label,
                       session->peer.pid, next.status().ToString());
      if (session->connection != nullptr) Disconnect(*session);
      return;
    }
    next->transfer.tenant = session_id;
    next->transfer.space = space_id;
    nvme_io_->Submit(next->transfer,
                     [this, session_id, space_id, taken = *next](const absl::Status& status) {
                       loop_->Post([this, session_id, space_id, taken, status] {
                         FinishTransfer(session_id, space_id, taken, status);
                       });
                     });
  }
}

void Server::FinishTransfer(uint64_t session_id, uint64_t space_id, const Space::Transfer& taken,
                            const absl::Status& status) {
  // Neither is destroyed while a transfer is in flight.
  PeerSession& owner = *Find(session_id);
  OpenedSpace& opened = owner.spaces.at(space_id);
  if (status.ok()) {
    CountWear(taken);
  } else if (!absl::IsAborted(status)) {  // Its client ended it, and no disk.
    ServerLog().error(
        "NVMe I/O of space {}, slot {}, in directory '{}' failed: {}; if it comes again, look at "
        "that "
        "disk (dmesg, smartctl) and start geminid without it",
        opened.space->plan().name, taken.nvme_slot,
        absl::CHexEscape(options_.nvme_directories[taken.nvme_place].path), status.ToString());
  }
  opened.space->Complete(taken, status.code());
  if (owner.lease->reclaiming) {
    ContinueReclaim(owner);
  } else if (opened.closing) {
    ContinueCloseSpace(owner, space_id);
  } else {
    ServeRing(session_id, space_id);
  }
}

void Server::CountWear(const Space::Transfer& moved) {
  if (moved.transfer.operation != IoOperation::kWrite) return;
  if (!nvme_wear_.Add(moved.nvme_place, moved.transfer.size_bytes, absl::Now())) return;
  ServerLog().warn(
      "more than {} were written to NVMe directory '{}' today (UTC): give jobs more HOST, or raise "
      "--nvme-daily-write-budget",
      FormatByteSize(nvme_wear_.daily_budget_bytes()),
      absl::CHexEscape(options_.nvme_directories[moved.nvme_place].path));
}

const SpaceCounts& Server::CountsOf(OpenedSpace& opened, absl::Duration now) {
  if (!opened.counts.has_value() || now >= counts_valid_until_) {
    opened.counts = opened.space->reader().Count();
  }
  return *opened.counts;
}

void Server::Handle(PeerSession& session, uint64_t id, const GetStatusRequest&) {
  // Counts that took long are shown again for 100 times as long: however many ask, counting takes a
  // hundredth of this thread. By its processor time, for a wait is no cost of counting.
  const absl::Duration now = MonotonicNow();
  const absl::Duration started_counting = ThreadTime();
  StatusAnswer answer;
  answer.build = options_.build;
  answer.uptime = now - started_;
  answer.costs = plans_->costs();
  for (Tier tier : kAllTiers) answer.tiers[tier] = budgets_.tier(tier);
  answer.nvme_wear = nvme_wear_.Read(absl::Now());
  answer.nvme_daily_write_budget_bytes = nvme_wear_.daily_budget_bytes();
  answer.device_gpu_uuid = stores_.device->gpu_uuid();
  answer.device_is_counted = !stores_.device->shares_memory();
  for (auto& [session_id, tenant] : sessions_) {
    if (!tenant->lease.has_value()) continue;
    const Lease& lease = *tenant->lease;
    TenantAnswer& shown =
        answer.tenants.emplace_back(TenantAnswer{.session = session_id,
                                                 .label = tenant->label,
                                                 .pid = tenant->peer.pid,
                                                 .uid = tenant->peer.uid,
                                                 .lease = lease.id,
                                                 .generation = lease.generation,
                                                 .fenced = lease.fenced,
                                                 .granted = lease.granted,
                                                 .floor = lease.floor,
                                                 .used = lease.used,
                                                 .requests = tenant->requests,
                                                 .want = lease.want,
                                                 .epoch = lease.epoch,
                                                 .device_target = lease.device_target,
                                                 .plan_refusal = tenant->plan_refusal});
    for (auto& [space_id, opened] : tenant->spaces) {
      if (opened.destroying) continue;
      const Space& space = *opened.space;
      SpaceStatusAnswer& status =
          answer.spaces.emplace_back(SpaceStatusAnswer{.space = space_id,
                                                       .name = space.plan().name,
                                                       .session = session_id,
                                                       .chunk_bytes = space.plan().chunk_bytes,
                                                       .num_bundles = space.plan().num_bundles,
                                                       .slots = space.slots(),
                                                       .counts = CountsOf(opened, now)});
      // All spaces of a session share the arena and state the same number.
      shown.used[Tier::kDevice] =
          std::max(shown.used[Tier::kDevice],
                   std::min(status.counts.device_used_bytes, lease.granted[Tier::kDevice]));
    }
  }
  const absl::Duration counting = ThreadTime() - started_counting;
  if (now >= counts_valid_until_ && counting > absl::Milliseconds(1)) {
    counts_valid_until_ = now + 100 * counting;
  }
  session.connection->Send(EncodeStatusReply(id, answer), {});
}

Server::NamedSpace Server::FindSpace(const std::string& name) {
  const auto holder = space_names_.find(name);
  if (holder == space_names_.end()) return {};
  PeerSession& session = *Find(holder->second);
  for (auto& [space_id, opened] : session.spaces) {
    if (!opened.destroying && opened.space->plan().name == name) return {&session, &opened};
  }
  return {};  // Being made, or being destroyed.
}

absl::Status Server::NoSpace(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat("no space '", Shown(name), "'"));
}

void Server::Handle(PeerSession& session, uint64_t id, const ListChunksRequest& list) {
  const NamedSpace found = FindSpace(list.space);
  if (found.opened == nullptr) {
    Refuse(session, id, NoSpace(list.space));
    return;
  }
  const Space* const space = found.opened->space.get();
  if (list.first < 0 || list.count < 0) {
    Refuse(session, id,
           absl::InvalidArgumentError(
               absl::StrCat("chunks from ", list.first, ", count ", list.count)));
    return;
  }
  const int64_t num_chunks = space->plan().num_bundles * kNumChunkKinds;
  const int64_t first = std::min(list.first, num_chunks);
  session.connection->Send(
      EncodeChunksReply(
          id, {.num_chunks = num_chunks,
               .chunk_bytes = space->plan().chunk_bytes,
               .first = first,
               .chunks = space->reader().List(first, std::min(list.count, kMaxListedChunks))}),
      {});
}

}  // namespace gemini::server
