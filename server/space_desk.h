// SPDX-License-Identifier: Apache-2.0
// What requests about spaces do: opens and closes them, moves their chunks between HOST and NVME as
// their I/O rings ask, and shows what is in them and on their job's timeline.
// Owner:  the server thread. Memory is made and destroyed by workers.
// Errors: Handle returns why a request is refused, and has changed nothing then. After OK the desk
//         answers, now or later.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/loop/server_options.h"
#include "server/loop/worker_thread.h"
#include "server/nvme/nvme_io.h"
#include "server/sessions.h"
#include "server/tiers/server_stores.h"

namespace gemini::server {

// Of all spaces together. A status reads 6 words a bundle at least: some 30 ms for all of these.
inline constexpr int64_t kMaxServerBundles = int64_t{1} << 21;
// Segments are memory beside the HOST capacity: at most this, for all spaces together.
constexpr int64_t MaxSegmentBytes(int64_t host_capacity_bytes) {
  return host_capacity_bytes / 64 + (int64_t{64} << 20);
}

class SpaceDesk {
 public:
  struct Handlers {
    // The session's client broke the rules of its ring: no honest one does.
    std::function<void(PeerSession&)> disconnect;
    // So much was written to an NVMe directory.
    std::function<void(int64_t place, int64_t size_bytes)> wrote;
  };

  // All that is handed in must outlive this.
  SpaceDesk(const ServerOptions& options, const ServerStores& stores, Sessions& sessions,
            std::unique_ptr<NvmeIo> nvme_io, Handlers handlers);

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

  // Takes back a space whose answer cannot be delivered: nobody knows of it.
  void TakeBack(PeerSession& session, uint64_t space);
  // Ends the client's right to all spaces of the session, and their transfers as soon as can be.
  void Fence(PeerSession& session);
  // Others may have the names of the session's spaces from now on.
  void FreeNames(const PeerSession& session);
  // Returns whether a transfer of the session's is in flight. Sessions::ReclaimIfDue is called at
  // the end of each.
  static bool HasTransfers(const PeerSession& session);
  // Destroys the session's spaces, which have no transfers, on a worker, which calls `also` then.
  // Calls `done` here when that is done.
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
  // Takes a space's room of its lease, and of what all spaces share. RESOURCE_EXHAUSTED: all share
  // less than that.
  absl::Status TakeRoom(Lease& lease, const SpacePlan& plan);
  void GiveRoomBack(Lease& lease, const SpacePlan& plan);
  // Runs `job`, which gives these slabs back, when the NVMe engine keeps nothing of them.
  void RunJobOnForgotten(absl::Span<const int> slab_fds, WorkerThread::Job job);
  void ServeRing(uint64_t session, uint64_t space);
  void FinishTransfer(uint64_t session, uint64_t space, const Space::Transfer& taken,
                      const absl::Status& status);

  const ServerOptions& options_;
  const ServerStores& stores_;
  Sessions& sessions_;
  const Handlers handlers_;
  std::map<std::string, uint64_t> names_;  // To the session.
  int64_t num_bundles_ = 0;                // Of all spaces, at most kMaxServerBundles.
  int64_t segment_bytes_ = 0;              // Likewise, at most MaxSegmentBytes().
  std::unique_ptr<NvmeIo> nvme_io_;        // Last: its reports use what is above.
};

}  // namespace gemini::server
