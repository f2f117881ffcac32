// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/protocol.h"
#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"
#include "server/nvme/nvme_io_choice.h"
#include "server/tiers/tier_store_arena.h"
#include "server/tiers/tier_store_host.h"
#include "server/tiers/tier_store_nvme.h"

namespace gemini::server {
namespace {

// Long beside an accept, short beside the patience of who connects.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// Above any machine; keeps sums of capacities far from overflow.
constexpr int64_t kMaxCapacityBytes = int64_t{1} << 60;

TierMap<int64_t> CapacityOf(const ServerStores& stores, const ServerOptions& options) {
  const int64_t grain_bytes = std::max<int64_t>(1, stores.device->slab_bytes());
  return {{options.capacity_bytes[Tier::kDevice] / grain_bytes * grain_bytes,
           stores.host->capacity_bytes(), stores.nvme->capacity_bytes()}};
}

std::unique_ptr<NvmeIo> WrapForTests(const ServerOptions& options, std::unique_ptr<NvmeIo> io) {
  return options.TESTING_ONLY_wrap_nvme_io == nullptr
             ? std::move(io)
             : options.TESTING_ONLY_wrap_nvme_io(std::move(io));
}

std::string Named(const Session& session) {
  return absl::StrCat("session ", session.id, " '", session.label, "' (pid ", session.peer.pid,
                      ")");
}

std::string Amounts(const TierMap<int64_t>& bytes) {
  return absl::StrCat("DEVICE ", FormatByteSize(bytes[Tier::kDevice]), ", HOST ",
                      FormatByteSize(bytes[Tier::kHost]), ", NVME ",
                      FormatByteSize(bytes[Tier::kNvme]));
}

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

bool IsNothing(const TierMap<int64_t>& bytes) { return bytes == TierMap<int64_t>{}; }

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Make(ServerOptions options) {
  for (Tier tier : {Tier::kDevice, Tier::kHost}) {
    if (options.capacity_bytes[tier] < 0 || options.capacity_bytes[tier] > kMaxCapacityBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          TierName(tier), " capacity of ", options.capacity_bytes[tier], " bytes: 0 to 2^60"));
    }
  }
  GEMINI_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Make());
  ServerStores stores;
  GEMINI_ASSIGN_OR_RETURN(stores.nvme, MakeNvmeTierStore(options.nvme_directories));
  if (stores.nvme->capacity_bytes() > kMaxCapacityBytes) {
    return absl::InvalidArgumentError("NVME capacity above 2^60 bytes");
  }
  stores.host = MakeHostTierStore(options.capacity_bytes[Tier::kHost]);
  if (options.make_device) {
    GEMINI_ASSIGN_OR_RETURN(stores.device,
                            options.make_device(options.capacity_bytes[Tier::kDevice]));
  } else {
    // Arenas have room to grow beyond what is granted, without pages: the budgets bound those.
    stores.device = MakeArenaTierStore(4 * kMaxCapacityBytes);
  }
  GEMINI_ASSIGN_OR_RETURN(std::unique_ptr<NvmeIo> nvme_io,
                          ChooseNvmeIo(options.nvme_engine, *loop));
  return std::unique_ptr<Server>(
      new Server(std::move(options), std::move(loop), std::move(stores), std::move(nvme_io)));
}

Server::Server(ServerOptions options, std::unique_ptr<EventLoop> loop, ServerStores stores,
               std::unique_ptr<NvmeIo> nvme_io)
    : options_(std::move(options)),
      loop_(std::move(loop)),
      stores_(std::move(stores)),
      budgets_(loop_->owner(), CapacityOf(stores_, options_)),
      nvme_wear_(options_.nvme_directories, options_.nvme_daily_write_budget_bytes),
      started_(MonotonicNow()),
      spare_fd_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      device_worker_(std::make_unique<WorkerThread>("gemini-device")),
      slab_worker_(std::make_unique<WorkerThread>("gemini-slabs")),
      nvme_io_(WrapForTests(options_, std::move(nvme_io))),
      plans_(std::make_unique<PlanService>(options_)) {}

Server::~Server() {
  // A server that never ran is destroyed by the thread that made it, which owns it until then.
  loop_->owner().AssertHere();
  stopping_ = true;
  stores_.nvme->Stop();
  if (listener_watch_ != 0) loop_->Unwatch(listener_watch_);
  for (auto& [id, session] : sessions_) session->connection.reset();
  closer_.Close(std::move(listener_));
  plans_.reset();
  nvme_io_.reset();  // Until here transfers use the slabs and extents.
  // Their reports stay in the loop and are destroyed with it.
  device_worker_.reset();
  slab_worker_.reset();
}

void Server::RunJob(Tier tier, WorkerThread::Job job) {
  (tier == Tier::kDevice ? device_worker_ : slab_worker_)
      ->Run([this, job = std::move(job)]() mutable {
        // The kernel takes back what a job not run holds.
        if (!stopping_) job();
      });
}

void Server::RunJobOnForgotten(absl::Span<const int> slab_fds, WorkerThread::Job job) {
  nvme_io_->Forget(slab_fds,
                   [this, job = std::move(job)]() mutable { RunJob(Tier::kHost, std::move(job)); });
}

Session* Server::Find(uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.get();
}

absl::Status Server::Listen(UniqueFd listener) {
  loop_->owner().AssertHere();
  const int flags = ::fcntl(listener.get(), F_GETFL);
  ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK);
  listener_ = std::move(listener);
  GEMINI_ASSIGN_OR_RETURN(listener_watch_,
                          loop_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }));
  return absl::OkStatus();
}

void Server::PauseAccepting() {
  loop_->Rewatch(listener_watch_, 0);
  loop_->After(kAcceptPause, [this] {
    if (listener_watch_ != 0) loop_->Rewatch(listener_watch_, EPOLLIN);
  });
}

int64_t Server::NumConnections() const {
  // With those that are coming to their end, for which workers have jobs.
  return std::ranges::count_if(sessions_,
                               [](const auto& entry) { return !entry.second->kept_for_process(); });
}

void Server::Accept() {
  if (closer_.num_waiting() >= kMaxSessions) {
    // Somebody's descriptors block the closer: no more are let in that might wait behind them.
    PauseAccepting();
    return;
  }
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    AddConnection(std::move(socket));
    return;
  }
  const int error = errno;
  if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
  if (error == EMFILE || error == ENFILE) {
    // The spare one lets the peer know, instead of leaving it in the queue.
    spare_fd_.Reset();
    UniqueFd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    Connection::Close(closer_, std::move(refused));
    spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  // Who waits in the queue makes the listener readable: the loop would turn for ever.
  PauseAccepting();
  const absl::Duration now = MonotonicNow();
  if (now < next_accept_warning_) return;
  next_accept_warning_ = now + absl::Seconds(10);
  ServerLog().warn("cannot accept connections: {}: raise the limit (ulimit -n) or close programs",
                   ErrnoStatus(error, "accept4").ToString());
}

void Server::AddConnection(UniqueFd socket) {
  loop_->owner().AssertHere();
  absl::Status refusal;
  absl::StatusOr<PeerProcess> peer = FindPeerProcess(socket.get());
  if (!peer.ok()) {
    refusal = peer.status();
  } else if (peer->uid != ::geteuid()) {
    refusal = absl::PermissionDeniedError(
        absl::StrCat("this server is of uid ", ::geteuid(), ", you are uid ", peer->uid));
  } else if (NumConnections() >= 2 * kMaxSessions) {
    // At Hello the limit is half of this: the peer then gets its reason as an answer. Here it may
    // be gone before it reads.
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the server has ", 2 * kMaxSessions, " connections, its limit: close some"));
  }
  if (!refusal.ok()) {
    ServerLog().warn("refused a connection: {}", refusal.ToString());
    SendPacket(socket.get(), EncodeRefusal(0, refusal), {}).IgnoreError();
    Connection::Close(closer_, std::move(socket));
    return;
  }
  const uint64_t id = next_id_++;
  auto session = std::make_unique<Session>();
  session->id = id;
  session->peer = *std::move(peer);
  session->connection = std::make_unique<Connection>(*loop_, closer_, std::move(socket));
  const absl::Status started = session->connection->Start(
      {.message =
           [this, id](std::string bytes) {
             if (Session* found = Find(id)) HandleMessage(*found, bytes);
           },
       .undeliverable =
           [this, id](const std::string& bytes) {
             Session* found = Find(id);
             return found == nullptr ? std::string() : Undeliverable(*found, bytes);
           },
       .hang_up =
           [this, id](const absl::Status& reason) {
             if (Session* found = Find(id)) HandleHangUp(*found, reason);
           }});
  absl::StatusOr<EventLoop::WatchId> watch = 0;
  if (started.ok() && session->peer.pidfd) {
    watch = loop_->Watch(session->peer.pidfd.get(), EPOLLIN, [this, id](uint32_t) {
      if (Session* found = Find(id)) HandleDeath(*found);
    });
  }
  if (!started.ok() || !watch.ok()) {
    ServerLog().warn("refused a connection: {} {}", started.ToString(), watch.status().ToString());
    return;
  }
  session->pidfd_watch = *watch;
  session->hello_timer = loop_->After(kHelloTimeout, [this, id] {
    Session* found = Find(id);
    if (found == nullptr) return;
    found->hello_timer.reset();
    ServerLog().warn("closed {}: no hello within {}", Named(*found),
                     absl::FormatDuration(kHelloTimeout));
    Erase(*found);
  });
  sessions_.emplace(id, std::move(session));
}

void Server::HandleMessage(Session& session, const std::string& bytes) {
  if (!session.said_hello && static_cast<int64_t>(bytes.size()) > kMaxHelloBytes) {
    ServerLog().warn("closed {}: a hello of {} bytes, at most {}", Named(session), bytes.size(),
                     kMaxHelloBytes);
    Disconnect(session);
    return;
  }
  const absl::StatusOr<Request> request = ParseRequest(bytes);
  if (!request.ok()) {
    ServerLog().warn("closed {}: {}", Named(session), request.status().ToString());
    Disconnect(session);
    return;
  }
  ++session.requests;
  const bool is_hello = std::holds_alternative<HelloRequest>(request->body);
  if (is_hello == session.said_hello) {
    Refuse(
        session, request->id,
        absl::FailedPreconditionError(is_hello ? "a second hello" : "the first request is hello"));
    if (!session.said_hello) session.connection->CloseAfterSend();
    return;
  }
  std::visit([&](const auto& body) { Handle(session, request->id, body); }, request->body);
}

void Server::Retire(std::unique_ptr<Connection> connection) {
  if (connection == nullptr) return;
  loop_->Post([retired = std::move(connection)] {});
}

void Server::Disconnect(Session& session) {
  HandleHangUp(session, absl::UnavailableError("closed by the server"));
}

void Server::HandleHangUp(Session& session, const absl::Status& reason) {
  if (session.connection != nullptr) session.connection->Pause();
  Retire(std::move(session.connection));
  DropWaitingLease(session.id);
  if (!session.lease.has_value()) {
    Erase(session);
    return;
  }
  if (session.lease->reclaiming) return;
  Fence(session, absl::StrCat("hang-up: ", reason.message()));
  // A lease of no bytes has no memory that the peer's threads may still write to.
  if (IsNothing(session.lease->granted)) BeginReclaim(session);
  RetryWaitingLeases();  // It will not give way any more: others may have to.
}

void Server::HandleDeath(Session& session) {
  loop_->Unwatch(std::exchange(session.pidfd_watch, 0));
  if (session.connection != nullptr) session.connection->Pause();
  Retire(std::move(session.connection));  // A forked child may hold the other end.
  DropWaitingLease(session.id);
  if (!session.lease.has_value()) {
    Erase(session);
    return;
  }
  if (session.lease->reclaiming) return;
  Fence(session, "its process is dead");
  session.lease->owner_died = true;
  BeginReclaim(session);
}

void Server::Fence(Session& session, absl::string_view why) {
  Lease& lease = *session.lease;
  if (lease.fenced) return;
  lease.fenced = true;
  ++lease.generation;
  if (lease.segment_map.data() != nullptr) {
    reinterpret_cast<LeaseSegmentShm*>(lease.segment_map.data())
        ->generation.store(lease.generation, std::memory_order_release);
  }
  for (auto& [id, opened] : session.spaces) {
    if (opened.destroying) continue;
    opened.space->Fence(lease.generation);
    nvme_io_->Cancel(session.id, id);
    loop_->Unwatch(std::exchange(opened.kick_watch, 0));
  }
  EndPlans(session);
  ServerLog().info("fenced lease {} of {}, generation {}: {}", lease.id, Named(session),
                   lease.generation, std::string(why));
}

void Server::BeginReclaim(Session& session) {
  GEMINI_CHECK(session.lease.has_value() && !session.lease->reclaiming);
  session.lease->reclaiming = true;
  budgets_.BeginReclaim(session.lease->granted);
  EndPlans(session);
  // Nobody uses them any more: a job that follows at once has its names, while these bytes go.
  std::erase_if(space_names_, [&](const auto& name) { return name.second == session.id; });
  ContinueReclaim(session);
}

void Server::FreeSpaceName(const Session& session, const std::string& name) {
  const auto holder = space_names_.find(name);
  if (holder != space_names_.end() && holder->second == session.id) space_names_.erase(holder);
}

void Server::ContinueReclaim(Session& session) {
  // What a worker is making or moving for this lease comes back first.
  if (session.worker_jobs > 0) return;
  for (const auto& [id, opened] : session.spaces) {
    if (opened.space->in_flight() > 0) return;
  }
  std::vector<LeavingSpace> leaving;
  std::vector<int> slab_fds;
  for (auto& [id, opened] : session.spaces) {
    const Space& space = *opened.space;
    leaving.push_back({space.plan(), space.slots(), opened.space->TakeMemory()});
    for (const TierExtent& slab : leaving.back().memory.host.extents) {
      slab_fds.push_back(slab.fd.get());
    }
  }
  session.spaces.clear();
  ++session.worker_jobs;
  const std::string dead = session.lease->owner_died ? Named(session) : "";
  auto destroy = [this, id = session.id, dead, leaving = std::move(leaving),
                  arena = std::move(session.lease->arena)]() mutable {
    std::vector<SpacePlan> left;
    for (LeavingSpace& space : leaving) {
      if (!dead.empty()) LogCommits(space, dead);
      DestroySpaceMemory(std::move(space.memory), *stores_.host, *stores_.nvme);
      left.push_back(std::move(space.plan));
    }
    stores_.device->Destroy(std::move(arena));
    loop_->Post([this, id, left = std::move(left)] {
      Session* found = Find(id);
      GEMINI_CHECK(found != nullptr && found->lease.has_value());
      --found->worker_jobs;
      for (const SpacePlan& plan : left) {
        GiveRoomBack(*found->lease, plan);
      }
      budgets_.FinishReclaim(found->lease->granted);
      ServerLog().info("lease {} of {} is free again: {}", found->lease->id, Named(*found),
                       Amounts(found->lease->granted));
      const std::optional<Lease::RefusalShown> refusal = std::move(found->lease->refusal);
      found->lease.reset();
      if (found->connection == nullptr) {
        Erase(*found);
      } else if (refusal.has_value()) {
        Refuse(*found, refusal->request, refusal->status);
        found->connection->Resume();
      }
      RetryWaitingLeases();
      CheckDrained();
    });
  };
  RunJobOnForgotten(slab_fds, std::move(destroy));
}

void Server::Erase(Session& session) {
  EndPlans(session);
  GEMINI_CHECK(session.worker_jobs == 0 && !session.lease.has_value() && session.spaces.empty());
  if (session.hello_timer.has_value()) loop_->Cancel(*session.hello_timer);
  if (session.pidfd_watch != 0) loop_->Unwatch(session.pidfd_watch);
  if (session.connection != nullptr) session.connection->Pause();
  Retire(std::move(session.connection));
  sessions_.erase(session.id);
  CheckDrained();
}

void Server::Drain(absl::Duration timeout) {
  loop_->owner().AssertHere();
  if (draining_) return;
  draining_ = true;
  if (listener_watch_ != 0) loop_->Unwatch(std::exchange(listener_watch_, 0));
  closer_.Close(std::move(listener_));  // With what was sent to it and not accepted.
  ServerLog().info("draining: no new sessions, at most {} for the open ones",
                   absl::FormatDuration(timeout));
  for (WaitingLease& waiting : std::exchange(waiting_leases_, {})) {
    EndWait(waiting);
    Session& session = *Find(waiting.session);
    Refuse(session, waiting.request, absl::UnavailableError("the server is draining"));
    session.connection->Resume();
  }
  loop_->After(timeout, [this] {
    ServerLog().warn("the drain timed out with sessions still open");
    loop_->Stop();
  });
  CheckDrained();
}

void Server::CheckDrained() {
  if (!draining_) return;
  for (const auto& [id, session] : sessions_) {
    if (session->lease.has_value() || session->worker_jobs > 0) return;
  }
  loop_->Stop();
}

}  // namespace gemini::server
