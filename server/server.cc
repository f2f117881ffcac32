// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/protocol.h"
#include "gemini/system/check.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "gemini/wire_generated.h"
#include "server/loop/server_log.h"
#include "server/nvme/nvme_io_choice.h"
#include "server/reply_wire.h"
#include "server/tiers/tier_store_arena.h"
#include "server/tiers/tier_store_host.h"
#include "server/tiers/tier_store_nvme.h"

namespace gemini::server {
namespace {

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
      book_(loop_->owner(), CapacityOf(stores_, options_)),
      nvme_wear_(options_.nvme_directories, options_.nvme_daily_write_budget_bytes),
      started_(MonotonicNow()),
      listener_(*loop_, closer_, kMaxSessions,
                [this](UniqueFd socket) { AddConnection(std::move(socket)); }),
      sessions_(*loop_, [this](PeerSession& session) { leases_.ContinueReclaim(session); }),
      promises_(sessions_, *stores_.device),
      spaces_(options_, stores_, promises_, sessions_, WrapForTests(options_, std::move(nvme_io)),
              {.disconnect = [this](PeerSession& session) { Disconnect(session); },
               .wrote = [this](int64_t place, int64_t bytes) { CountWear(place, bytes); }}),
      slabs_(*stores_.device, sessions_),
      plans_(options_, *stores_.device, sessions_, spaces_, book_),
      leases_(options_, *stores_.device, sessions_, spaces_, plans_, promises_, book_,
              [this](PeerSession& session) {
                if (session.connection == nullptr) Erase(session);
                CheckDrained();
              }) {}

Server::~Server() {
  // A server that never ran is destroyed by the thread that made it, which owns it until then.
  loop_->owner().AssertHere();
  stores_.nvme->Stop();
  listener_.Close();
  // Reports of what ends from here on stay in the loop and are destroyed with it.
  sessions_.Stop();
}

absl::Status Server::Listen(UniqueFd listener) {
  loop_->owner().AssertHere();
  return listener_.Listen(std::move(listener));
}

void Server::AddConnection(UniqueFd socket) {
  loop_->owner().AssertHere();
  // With those that are coming to their end, for which workers have jobs.
  const int64_t num_connections = std::ranges::count_if(
      sessions_.all(), [](const auto& entry) { return !entry.second->kept_for_process(); });
  absl::Status refusal;
  absl::StatusOr<PeerProcess> peer = FindPeerProcess(socket.get());
  if (!peer.ok()) {
    refusal = peer.status();
  } else if (peer->uid != ::geteuid()) {
    refusal = absl::PermissionDeniedError(
        absl::StrCat("this server is of uid ", ::geteuid(), ", you are uid ", peer->uid));
  } else if (num_connections >= 2 * kMaxSessions) {
    // At Hello the limit is half of this: the peer then gets its reason as an answer. Here it may
    // be gone before it reads.
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the server has ", 2 * kMaxSessions, " connections, its limit: close some"));
  }
  if (!refusal.ok()) {
    ServerLog().warn("refused a connection: {}", refusal.ToString());
    SendPacket(socket.get(), EncodeRefusal(0, refusal), {}).IgnoreError();
    PeerConnection::Close(closer_, std::move(socket));
    return;
  }
  const uint64_t id = sessions_.NextId();
  auto session = std::make_unique<PeerSession>();
  session->id = id;
  session->peer = *std::move(peer);
  session->connection = std::make_unique<PeerConnection>(*loop_, closer_, std::move(socket));
  const absl::Status started = session->connection->Start(
      {.message =
           [this, id](std::string bytes) {
             if (PeerSession* found = sessions_.Find(id)) HandleMessage(*found, bytes);
           },
       .undeliverable =
           [this, id](const std::string& bytes) {
             PeerSession* found = sessions_.Find(id);
             return found == nullptr ? std::string() : Undeliverable(*found, bytes);
           },
       .hang_up =
           [this, id](const absl::Status& reason) {
             if (PeerSession* found = sessions_.Find(id)) HandleHangUp(*found, reason);
           }});
  absl::StatusOr<EventLoop::WatchId> watch = 0;
  if (started.ok() && session->peer.pidfd) {
    watch = loop_->Watch(session->peer.pidfd.get(), EPOLLIN, [this, id](uint32_t) {
      if (PeerSession* found = sessions_.Find(id)) HandleDeath(*found);
    });
  }
  if (!started.ok() || !watch.ok()) {
    ServerLog().warn("refused a connection: {} {}", started.ToString(), watch.status().ToString());
    return;
  }
  session->pidfd_watch = *watch;
  session->hello_timer = loop_->After(kHelloTimeout, [this, id] {
    PeerSession* found = sessions_.Find(id);
    if (found == nullptr) return;
    found->hello_timer.reset();
    ServerLog().warn("closed {}: no hello within {}", Named(*found),
                     absl::FormatDuration(kHelloTimeout));
    Erase(*found);
  });
  sessions_.Add(std::move(session));
}

void Server::HandleMessage(PeerSession& session, const std::string& bytes) {
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
    sessions_.Refuse(
        session, request->id,
        absl::FailedPreconditionError(is_hello ? "a second hello" : "the first request is hello"));
    if (!session.said_hello) session.connection->CloseAfterSend();
    return;
  }
  const uint64_t id = request->id;
  const absl::Status answered = std::visit(
      [&](const auto& body) {
        // Where none of them takes a request, this does not compile.
        if constexpr (requires { Handle(session, id, body); }) {
          return Handle(session, id, body);
        } else if constexpr (requires { leases_.Handle(session, id, body); }) {
          return leases_.Handle(session, id, body);
        } else if constexpr (requires { spaces_.Handle(session, id, body); }) {
          return spaces_.Handle(session, id, body);
        } else if constexpr (requires { slabs_.Handle(session, id, body); }) {
          return slabs_.Handle(session, id, body);
        } else {
          return plans_.Handle(session, id, body);
        }
      },
      request->body);
  if (!answered.ok()) sessions_.Refuse(session, id, answered);
}

std::string Server::Undeliverable(PeerSession& session, const std::string& answer) {
  const wire::Message& message = *wire::GetMessage(answer.data());
  const uint64_t id = message.request_id();
  const absl::Status refusal = absl::ResourceExhaustedError(
      absl::StrCat("the kernel has taken no descriptors for ",
                   absl::FormatDuration(PeerConnection::kDescriptorPatience),
                   ", or geminid has none left to wait with: this user has too many descriptors in "
                   "flight, in messages that nobody reads. End the program that does not read, or "
                   "raise the limit (ulimit -n)"));
  ServerLog().warn("cannot answer a request of {}: {}", Named(session), refusal.ToString());
  // Nobody knows of what it would have told: it is taken back.
  if (message.body_type() == wire::Body::LeaseReply && session.lease.has_value() &&
      !session.reclaiming()) {
    leases_.TakeBack(session, id, refusal);
    return "";
  }
  if (const wire::SpaceReply* reply = message.body_as_SpaceReply()) {
    spaces_.TakeBack(session, reply->space());
  }
  return EncodeRefusal(id, refusal);
}

void Server::Disconnect(PeerSession& session) {
  HandleHangUp(session, absl::UnavailableError("closed by the server"));
}

bool Server::LeavesLease(PeerSession& session) {
  sessions_.RetireConnection(session);
  leases_.DropWaiting(session);
  if (session.lease.has_value()) return !session.reclaiming();
  Erase(session);
  return false;
}

void Server::HandleHangUp(PeerSession& session, const absl::Status& reason) {
  if (!LeavesLease(session)) return;
  leases_.Fence(session, absl::StrCat("hang-up: ", reason.message()));
  // A lease of no bytes has no memory that the peer's threads may still write to.
  if (session.lease->terms.granted == TierMap<int64_t>{}) leases_.BeginReclaim(session);
  leases_.RetryWaiting();  // It will not give way any more: others may have to.
}

void Server::HandleDeath(PeerSession& session) {
  loop_->Unwatch(std::exchange(session.pidfd_watch, 0));
  if (!LeavesLease(session)) return;  // A forked child may hold the other end.
  leases_.Fence(session, "its process is dead");
  session.lease->owner_died = true;
  leases_.BeginReclaim(session);
}

void Server::Erase(PeerSession& session) {
  plans_.End(session);
  GEMINI_CHECK(session.worker_jobs == 0 && !session.lease.has_value() && session.spaces.empty());
  if (session.hello_timer.has_value()) loop_->Cancel(*session.hello_timer);
  if (session.pidfd_watch != 0) loop_->Unwatch(session.pidfd_watch);
  sessions_.RetireConnection(session);
  sessions_.Erase(session);
  CheckDrained();
}

void Server::Drain(absl::Duration timeout) {
  loop_->owner().AssertHere();
  if (leases_.draining()) return;
  listener_.Close();
  ServerLog().info("draining: no new sessions, at most {} for the open ones",
                   absl::FormatDuration(timeout));
  leases_.Drain();
  loop_->After(timeout, [this] {
    ServerLog().warn("the drain timed out with sessions still open");
    loop_->Stop();
  });
  CheckDrained();
}

void Server::CheckDrained() {
  if (!leases_.draining()) return;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->lease.has_value() || session->worker_jobs > 0) return;
  }
  loop_->Stop();
}

}  // namespace gemini::server
