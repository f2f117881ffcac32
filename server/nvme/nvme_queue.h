// SPDX-License-Identifier: Apache-2.0
// The transfers that wait for an NVMe engine. They are served in pieces, so that a long transfer
// holds nobody up, and tenants take turns by bytes: each has its part of the disk, however much
// another has queued. Of one tenant the order is that of arrival.
// Thread: one at a time; an engine with threads holds its mutex. Nothing here calls a `done`: the
//         engine does, with what comes back as Ended, after it has released its mutex.
// Source: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995); its quantum is a piece.
#pragma once
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/nvme/nvme_io.h"

namespace gemini::server {

// The kernel itself cuts a piece into what the disk takes, all of it in flight at once: smaller
// pieces are more calls, and were not seen to be faster.
inline constexpr int64_t kNvmePieceBytes = int64_t{4} << 20;

class NvmeQueue {
 public:
  // A transfer from Push to its end.
  struct Moving {
    NvmeTransfer transfer;
    NvmeIo::Done done;
    absl::Status status;      // The first failure; no piece begins after it.
    int64_t begun_bytes = 0;  // That pieces were made of.
    int num_pieces = 0;       // That Next returned and Finish has not seen.
  };
  // A part of a transfer: at most kNvmePieceBytes, and no multiple of these in the slab lies inside
  // it.
  struct Piece {
    std::shared_ptr<Moving> of;
    int64_t begin_bytes = 0;  // In the transfer.
    int64_t size_bytes = 0;
    int refusals = 0;  // As of MovedBytes.
  };
  // A transfer that is over: `done` is to be called with `status`.
  struct Ended {
    NvmeIo::Done done;
    absl::Status status;
  };

  // Queues a transfer of at least one byte.
  void Push(const NvmeTransfer& transfer, NvmeIo::Done done);
  // Returns the piece whose turn it is, which Finish must see; nothing where none waits.
  std::optional<Piece> Next();
  // Ends a piece. Returns the transfer if it is over with that.
  [[nodiscard]] std::optional<Ended> Finish(const Piece& piece, const absl::Status& status);
  // Begins no more pieces of this space: such a transfer ends with ABORTED, when its last piece
  // under way is finished. Returns those that are over now. O(transfers of the tenant).
  [[nodiscard]] std::vector<Ended> Cancel(uint64_t tenant, uint64_t space);
  // The same for all there are.
  [[nodiscard]] std::vector<Ended> CancelAll(const absl::Status& why);
  bool empty() const { return turns_.empty(); }

 private:
  struct Tenant {
    uint64_t id = 0;
    int64_t deficit_bytes = 0;  // What it may begin in this turn.
    // Each has bytes of which no piece was made, and has not failed; only the first has begun.
    // Never empty.
    std::deque<std::shared_ptr<Moving>> waiting;
  };
  std::list<Tenant>::iterator Find(uint64_t tenant);

  std::list<Tenant> turns_;  // The first one's turn it is.
};

}  // namespace gemini::server
