// SPDX-License-Identifier: Apache-2.0
// Handles requests about spaces, the named sets of chunks in which a client keeps one model. It
// opens and closes them, moves their chunks between HOST and NVME as their I/O rings ask, and reads
// their residency words and their job's timeline for memstat.
// Owner:  the server thread. Memory is made and destroyed by workers.
// Errors: Handle returns why a request is refused, and has changed nothing then. After OK the desk
//         answers, now or later.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device_promises.h"
#include "server/loop/server_options.h"
#include "server/loop/worker_thread.h"
#include "server/nvme/nvme_io.h"
#include "server/sessions.h"
#include "server/tiers/server_stores.h"

namespace gemini::server {

// The most bundles of all spaces together. It bounds the cost of a status request, which reads 9
// words a bundle, and 17 if the bundle is committed.
inline constexpr int64_t kMaxServerBundles = int64_t{1} << 21;
// Returns the most bytes that the segments of all spaces may take. They are not part of the HOST
// capacity.
constexpr int64_t MaxSegmentBytes(int64_t host_capacity_bytes) {
  return host_capacity_bytes / 64 + (int64_t{64} << 20);
}

// The most I/O rings that one turn of the event loop serves, and the most requests that it takes of
// each: 256 requests in all, which take some 0.1 ms where all are refused. Others wait for so long
// at most, however many rings there are (docs/adr/0089-rings-wait-in-one-queue.md).
inline constexpr int kRingVisitsPerTurn = 16;
inline constexpr int64_t kRequestsPerVisit = 16;

class SpaceDesk {
 public:
  struct Handlers {
    // The session's client broke the rules of its ring, which no honest client does.
    std::function<void(PeerSession&)> disconnect;
    // A write of `size_bytes` to the NVMe directory `place` has ended.
    std::function<void(int64_t place, int64_t size_bytes)> wrote;
  };

  // All that is handed in must outlive this.
  SpaceDesk(const ServerOptions& options, const ServerStores& stores,
            const DevicePromises& promises, Sessions& sessions, std::unique_ptr<NvmeIo> nvme_io,
            Handlers handlers);

  absl::Status Handle(PeerSession& session, uint64_t id, const OpenSpaceRequest& open);
  absl::Status Handle(PeerSession& session, uint64_t id, const CloseSpaceRequest& close);
  absl::Status Handle(PeerSession& session, uint64_t id, const ListChunksRequest& list);
  absl::Status Handle(PeerSession& session, uint64_t id, const ReadTimelineRequest& read);

  struct NamedSpace {
    PeerSession& session;
    OpenedSpace& opened;
  };
  // NOT_FOUND: no space of that name is open; one that is being made or destroyed is none.
  absl::StatusOr<NamedSpace> FindSpace(const std::string& name) const;

  // Closes a space whose reply cannot be delivered, so that no client knows of it.
  void TakeBack(PeerSession& session, uint64_t space);
  // Ends the client's right to all spaces of the session, and cancels their transfers.
  void Fence(PeerSession& session);
  // Frees the names of the session's spaces for other sessions.
  void FreeNames(const PeerSession& session);
  // Returns whether a transfer of the session is in flight. Sessions::ReclaimIfDue is called at the
  // end of each.
  static bool HasTransfers(const PeerSession& session);
  // Destroys the session's spaces, which have no transfers, on a worker, which then runs `also`.
  // After that `done` is called on the server thread.
  void DestroyAll(PeerSession& session, WorkerThread::Job also,
                  absl::AnyInvocable<void(PeerSession&)> done);

 private:
  void FinishOpen(PeerSession& session, uint64_t request, const SpacePlan& plan,
                  SpaceMemory memory);
  // Begins the space's end; it waits for transfers in flight.
  void Close(PeerSession& session, uint64_t space);
  void ContinueClose(PeerSession& session, uint64_t space);
  // Does nothing where the name is another session's by now.
  void FreeName(const PeerSession& session, const std::string& name);
  // Takes a space's room of its lease, and of what all spaces share. Returns the promised DEVICE
  // that whoever makes its memory has to leave room for; nothing where that was checked here.
  // RESOURCE_EXHAUSTED: all share less than that, or the machine has less.
  absl::StatusOr<PromisedDevice> TakeRoom(Lease& lease, const SpacePlan& plan);
  // Whether a lease or a space gives memory back that the machine still counts as used.
  bool MemoryComesBack() const;
  void GiveRoomBack(Lease& lease, const SpacePlan& plan);
  // Runs `job`, which gives these slabs back, when the NVMe engine keeps nothing of them.
  void RunJobOnForgotten(absl::Span<const int> slab_fds, WorkerThread::Job job);
  // A space whose client has posted requests.
  struct Ring {
    uint64_t session = 0;
    uint64_t space = 0;
  };
  // Puts the ring at the end of the queue, unless it is in it.
  void QueueRing(Ring ring, OpenedSpace& opened);
  // Has the loop call ServeRings once it has looked at its other events.
  void PostTurn();
  void ServeRings();
  void VisitRing(Ring ring);
  void FinishTransfer(uint64_t session, uint64_t space, const Space::Transfer& taken,
                      const absl::Status& status);

  const ServerOptions& options_;
  const ServerStores& stores_;
  const DevicePromises& promises_;
  Sessions& sessions_;
  const Handlers handlers_;
  std::map<std::string, uint64_t> names_;  // To the session.
  int64_t num_bundles_ = 0;                // Of all spaces, at most kMaxServerBundles.
  int64_t segment_bytes_ = 0;              // Likewise, at most MaxSegmentBytes().
  // In the order of their turns. What is fenced or closing is not among them.
  std::deque<Ring> rings_;
  bool turn_posted_ = false;               // ServeRings is about to be called.
  std::unique_ptr<NvmeIo> nvme_io_;        // Last: its reports use what is above.
};

}  // namespace gemini::server
