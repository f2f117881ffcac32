// SPDX-License-Identifier: Apache-2.0
// The server: it accepts connections, keeps their sessions, and hands each request to the desk that
// it is for. All of it is owned by the thread of its event loop; what may wait for the kernel or a
// disk runs on workers, which report by messages.
// Owner:  the thread that calls Run, which also destroys the server. Post through loop() from
//         others.
// Errors: a peer's request is answered with a Refusal and one log line. Nothing that a peer does
//         stops the server, blocks its thread or keeps a descriptor.
// Death:  a hang-up or the death of the peer's process fences its lease: the generation is raised,
//         I/O is refused. Its bytes go to others only after an orderly CloseSession, or the
//         confirmed death of the process with its I/O drained. An embedded client's process is our
//         own: what it leaves without CloseSession is kept until the server stops.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/lease_desk.h"
#include "server/leases/lease_book.h"
#include "server/loop/event_loop.h"
#include "server/loop/fd_closer.h"
#include "server/loop/server_options.h"
#include "server/nvme/nvme_io.h"
#include "server/nvme/nvme_wear.h"
#include "server/plan_desk.h"
#include "server/sessions.h"
#include "server/slab_desk.h"
#include "server/space_desk.h"
#include "server/tiers/server_stores.h"
#include "server/wire/peer_listener.h"

namespace gemini::server {

// Connected sessions that said hello; as many connections more may be about to. Each costs 3
// descriptors and 64 KiB at most, and 0.75 MiB for a timeline that its client writes.
inline constexpr int64_t kMaxSessions = 256;
// Of one process that lives: those without a connection, whose leases are kept for it (see Death).
inline constexpr int64_t kMaxHungUpSessions = 64;

class Server {
 public:
  // INVALID_ARGUMENT: a negative capacity, or a directory that is none. Others: of the NVMe store.
  static absl::StatusOr<std::unique_ptr<Server>> Make(ServerOptions options);
  // Hangs up on all peers, waits for the jobs and transfers that have begun, drops the others, and
  // gives everything back.
  ~Server();

  EventLoop& loop() { return *loop_; }
  // Serves until loop().Stop(); the calling thread becomes the owner.
  void Run() { loop_->Run(); }

  // Owner thread only, from here on. Takes a connected SEQPACKET socket.
  void AddConnection(UniqueFd socket);
  // Accepts from a listening socket from now on.
  absl::Status Listen(UniqueFd listener);
  // Refuses new leases and sessions from now on; stops the loop when no lease is left or `timeout`
  // has passed.
  void Drain(absl::Duration timeout);

 private:
  Server(ServerOptions options, std::unique_ptr<EventLoop> loop, ServerStores stores,
         std::unique_ptr<NvmeIo> nvme_io);

  // server.cc: connections, and sessions from their first message to their end.
  void HandleMessage(PeerSession& session, const std::string& bytes);
  // An answer whose descriptors the kernel does not take: returns what is sent in its place.
  std::string Undeliverable(PeerSession& session, const std::string& answer);
  void HandleHangUp(PeerSession& session, const absl::Status& reason);
  void HandleDeath(PeerSession& session);
  // Ends the connection, and the session where it has no lease. Returns whether it leaves a lease
  // that is not being reclaimed.
  bool LeavesLease(PeerSession& session);
  void Disconnect(PeerSession& session);
  void Erase(PeerSession& session);
  void CheckDrained();

  // server_requests.cc: what is asked of the server itself, as the desks have it.
  absl::Status Handle(PeerSession& session, uint64_t id, const HelloRequest& hello);
  absl::Status Handle(PeerSession& session, uint64_t id, const CloseSessionRequest& close);
  absl::Status Handle(PeerSession& session, uint64_t id, const GetStatusRequest& get);
  void CountWear(int64_t place, int64_t size_bytes);

  const ServerOptions options_;
  FdCloser closer_;  // Outlives the connections that wait in the loop to be destroyed.
  const std::unique_ptr<EventLoop> loop_;
  const ServerStores stores_;
  LeaseBook book_;
  NvmeWear nvme_wear_;
  const absl::Duration started_;  // By MonotonicNow.
  PeerListener listener_;
  absl::Duration counts_valid_until_ = -absl::InfiniteDuration();  // Those of spaces.
  // In the order of who uses whom: the last one ends first, and with it what it has under way.
  Sessions sessions_;
  SpaceDesk spaces_;
  SlabDesk slabs_;
  PlanDesk plans_;
  LeaseDesk leases_;
};

}  // namespace gemini::server
