// SPDX-License-Identifier: Apache-2.0
// Runs the server of the memory manager. It accepts connections of training jobs, keeps a session
// for each, and passes each request to the class that handles it (a desk). One thread, that of the
// event loop, owns all metadata. What may block on the kernel or a disk runs on workers, which post
// messages.
// Owner:  the thread that calls Run, which also destroys the server. Other threads post through
//         loop().
// Errors: a request that fails is answered with a Refusal and logged in one line. A message that is
//         no request ends the connection. Nothing that a peer does stops the server, blocks its
//         thread or keeps a descriptor.
// Death:  a hang-up, or the death of the peer's process, fences its lease: the generation is raised
//         and I/O is refused. Its memory is reclaimed only after CloseSession, or when the process
//         is known to be dead and its I/O is drained. The process of an embedded client is our own,
//         so a lease that it leaves without CloseSession is kept until the server stops.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/device_promises.h"
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

// The most connected sessions that have said hello. As many more connections may exist that have
// not. Each costs at most 4 descriptors and 64 KiB, 0.75 MiB for a timeline that its client writes,
// and for a minute the plan or trace that it got last.
inline constexpr int64_t kMaxSessions = 256;
// The most sessions of one living process that hung up and whose leases are kept (see Death).
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
  const DevicePromises promises_;
  SpaceDesk spaces_;
  SlabDesk slabs_;
  PlanDesk plans_;
  LeaseDesk leases_;
};

}  // namespace gemini::server
