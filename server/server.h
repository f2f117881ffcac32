// SPDX-License-Identifier: Apache-2.0
// The server: sessions, leases, budgets and spaces, all owned by the thread of its event loop. What
// may wait for the kernel or a disk runs on workers, which report by messages.
// Owner:  the thread that calls Run, which also destroys the server. Post through loop() from
//         others.
// Errors: a peer's request is answered with a Refusal and one log line. Nothing that a peer does
//         stops the server, blocks its thread or keeps a descriptor.
// Death:  a hang-up or the death of the peer's process fences its lease: the generation is raised,
//         I/O is refused. Its bytes go to others only after an orderly CloseSession, or the
//         confirmed death of the process with its I/O drained. An embedded client's process is our
//         own: what it leaves without CloseSession is kept until the server stops.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/leases/budgets.h"
#include "server/loop/event_loop.h"
#include "server/loop/server_options.h"
#include "server/loop/worker_thread.h"
#include "server/nvme/nvme_io.h"
#include "server/nvme/nvme_wear.h"
#include "server/peer_session.h"
#include "server/plans/plan_service.h"
#include "server/reply_wire.h"
#include "server/tiers/server_stores.h"
#include "server/waiting_lease.h"
#include "server/wire/stopped_processes.h"

namespace gemini::server {

// Connected sessions that said hello; as many connections
// more may be about to. Each costs 3 descriptors and 64 KiB at most, and 0.75 MiB for a timeline
// that its client writes.
inline constexpr int64_t kMaxSessions = 256;
// Of one process that lives: those without a connection, whose leases are kept for it (see Death).
inline constexpr int64_t kMaxHungUpSessions = 64;
// Of all spaces together. A status reads 6 words a bundle at least: some 30 ms for all of these.
inline constexpr int64_t kMaxServerBundles = int64_t{1} << 21;
// Segments are memory beside the HOST capacity: at most this, for all spaces together.
constexpr int64_t MaxSegmentBytes(int64_t host_capacity_bytes) {
  return host_capacity_bytes / 64 + (int64_t{64} << 20);
}

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

  // server.cc: sessions and their end.
  void Accept();
  void PauseAccepting();
  int64_t NumConnections() const;
  void HandleMessage(PeerSession& session, const std::string& bytes);
  void HandleHangUp(PeerSession& session, const absl::Status& reason);
  void HandleDeath(PeerSession& session);
  void Fence(PeerSession& session, absl::string_view why);
  void BeginReclaim(PeerSession& session);
  void ContinueReclaim(PeerSession& session);
  // Nothing happens where the name is another session's by now.
  void FreeSpaceName(const PeerSession& session, const std::string& name);
  void Disconnect(PeerSession& session);
  void Erase(PeerSession& session);
  void CheckDrained();
  PeerSession* Find(uint64_t session);
  void RunJob(Tier tier, WorkerThread::Job job);
  // Runs `job`, which gives these slabs back, when the NVMe engine keeps nothing of them.
  void RunJobOnForgotten(absl::Span<const int> slab_fds, WorkerThread::Job job);
  // Destroys a connection after the handler that is running in it.
  void Retire(std::unique_ptr<PeerConnection> connection);

  // server_requests.cc: one function a request.
  void Refuse(PeerSession& session, uint64_t request, const absl::Status& status);
  void Handle(PeerSession& session, uint64_t id, const HelloRequest& hello);
  void Handle(PeerSession& session, uint64_t id, const OpenSpaceRequest& open);
  void Handle(PeerSession& session, uint64_t id, const CloseSpaceRequest& close);
  void Handle(PeerSession& session, uint64_t id, const CloseSessionRequest& close);
  void Handle(PeerSession& session, uint64_t id, const GetStatusRequest& get);
  void Handle(PeerSession& session, uint64_t id, const ListChunksRequest& list);
  void Handle(PeerSession& session, uint64_t id, const ReadTimelineRequest& read);
  // The open space of that name, with its session; nulls: there is none.
  struct NamedSpace {
    PeerSession* session = nullptr;
    OpenedSpace* opened = nullptr;
  };
  NamedSpace FindSpace(const std::string& name);
  static absl::Status NoSpace(absl::string_view name);
  // server_leases.cc: who has which budgets.
  void Handle(PeerSession& session, uint64_t id, const OpenLeaseRequest& open);
  void Handle(PeerSession& session, uint64_t id, const AckEpochRequest& ack);
  // Returns false when the request must wait: for bytes on their way back, or that others were
  // asked for. It came after those in waiting_leases_, and before `later`.
  bool TryLease(WaitingLease& waiting, const std::deque<WaitingLease>& later);
  void BeginLease(PeerSession& session, uint64_t request, const OpenLeaseRequest& open,
                  const TierMap<int64_t>& granted);
  void FinishLease(PeerSession& session, uint64_t request, const absl::Status& made);
  // Once for all that ends, comes free or times out in this turn of the loop.
  void RetryWaitingLeases();
  void TryWaitingLeases();
  void DropWaitingLease(uint64_t session);
  void EndWait(WaitingLease& waiting);
  void EndWaitForAnswers(uint64_t session_id);
  bool AnswersEpochs(const PeerSession& session) const;
  std::string NamedHolder(const PeerSession& session) const;
  absl::Status NoRoom(Tier tier, const OpenLeaseRequest& open) const;
  absl::Status NobodyAnswered(const OpenLeaseRequest& open) const;
  DeviceSupply FindDeviceSupply() const;
  DevicePromise PromiseDevice(const WaitingLease& waiting, const std::deque<WaitingLease>& later,
                              const DeviceSupply& supply) const;
  // Posts smaller targets, so that what is promised will be there.
  void AskToGiveWay(WaitingLease& waiting, const DevicePromise& own, const DeviceSupply& supply);
  // Gives what is free to those who have less than they want, if nobody waits.
  void GrowBack();
  void PostTarget(PeerSession& session, int64_t device_bytes);
  // server_slabs.cc: descriptors of HOST and DEVICE.
  void Handle(PeerSession& session, uint64_t id, const TakeSlabsRequest& take);
  void Handle(PeerSession& session, uint64_t id, const KeepSlabsRequest& keep);
  // Of an answer whose descriptors the kernel does not take: what is sent instead.
  std::string Undeliverable(PeerSession& session, const std::string& answer);
  void TakeDeviceSlabs(PeerSession& session, uint64_t id, const TakeSlabsRequest& take);
  // server_plans.cc: traces and plans.
  void Handle(PeerSession& session, uint64_t id, const OpenTraceRequest& open);
  void Handle(PeerSession& session, uint64_t id, const MakePlanRequest& make);
  void Handle(PeerSession& session, uint64_t id, const FindTraceRequest& find);
  void Handle(PeerSession& session, uint64_t id, const FindPlanInputsRequest& find);
  void SendTraceRoom(PeerSession& session, uint64_t id, int64_t size_bytes);
  // Closes it without the owner thread's or a plan's time; then calls `then` if the session goes
  // on.
  void CloseTraceRoom(PeerSession& session, UniqueFd room,
                      absl::AnyInvocable<void(PeerSession&)> then);
  // Its session ends: a plan that it waits for is not made, and its trace room is closed.
  void EndPlans(PeerSession& session);
  void FinishOpenSpace(PeerSession& session, uint64_t request, const SpacePlan& plan,
                       SpaceMemory memory);
  // The room that spaces take of their lease, and of what all share. A plan's room is given back
  // once.
  absl::Status TakeRoom(Lease& lease, const SpacePlan& plan);
  void GiveRoomBack(Lease& lease, const SpacePlan& plan);
  const SpaceCounts& CountsOf(OpenedSpace& opened, absl::Duration now);
  void ContinueCloseSpace(PeerSession& session, uint64_t space);
  void ServeRing(uint64_t session, uint64_t space);
  void FinishTransfer(uint64_t session, uint64_t space, const Space::Transfer& taken,
                      const absl::Status& status);
  void CountWear(const Space::Transfer& moved);  // If it is a write.
  TierMap<int64_t> FreeBytes() const;

  const ServerOptions options_;
  FdCloser closer_;  // Outlives the connections that wait in the loop to be destroyed.
  const std::unique_ptr<EventLoop> loop_;
  const ServerStores stores_;
  Budgets budgets_;
  NvmeWear nvme_wear_;
  const absl::Duration started_;  // By MonotonicNow.
  UniqueFd listener_;
  EventLoop::WatchId listener_watch_ = 0;
  UniqueFd spare_fd_;  // Given up for a moment to refuse a peer when descriptors run out.
  std::map<uint64_t, std::unique_ptr<PeerSession>> sessions_;
  std::map<std::string, uint64_t> space_names_;  // To the session.
  std::deque<WaitingLease> waiting_leases_;
  bool retry_posted_ = false;
  mutable StoppedProcesses stopped_processes_;
  int64_t num_bundles_ = 0;    // Of all spaces, at most kMaxServerBundles.
  int64_t segment_bytes_ = 0;  // Likewise, at most MaxSegmentBytes().
  absl::Duration counts_valid_until_ = -absl::InfiniteDuration();
  uint64_t next_id_ = 1;  // Sessions, leases and spaces: never used twice.
  bool draining_ = false;
  std::atomic<bool> stopping_ = false;  // Read by workers too: jobs still queued do nothing.
  absl::Duration next_accept_warning_ = -absl::InfiniteDuration();
  // Last, so that they end first: their jobs use what is above.
  std::unique_ptr<WorkerThread> device_worker_, slab_worker_;  // Of a lease's DEVICE; of spaces.
  std::unique_ptr<NvmeIo> nvme_io_;
  std::unique_ptr<PlanService> plans_;
};

}  // namespace gemini::server
