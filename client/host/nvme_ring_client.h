// SPDX-License-Identifier: Apache-2.0
// Has the server move chunks between HOST and NVME slots of a space. It posts a request on the ring
// in the client segment, kicks the server's eventfd, and waits for the request's completion word in
// the server segment.
// Checks: each write carries the CRC32C of the HOST slot, and the bytes of each read are compared
//         with that of the write that filled the NVMe slot. Both are computed in memory, so a byte
//         that changed anywhere in between is found.
// Thread: any; up to kIoRingEntries transfers are in flight at once, and more wait for room. The
//         calling thread computes the checksum. When it writes a chunk of kLateChecksumBytes or
//         more, it does so while the disk is writing.
// Errors: the server's, such as RESOURCE_EXHAUSTED. DATA_LOSS: the disk failed, no write of the
//         whole slot was completed, or a read brought other bytes than were written. ABORTED: the
//         lease was fenced, so the session is over. UNAVAILABLE: the server is gone, which is
//         noticed within a second, or a transfer takes longer than kStuckAfter. The server may then
//         still write to the slot, and every later transfer fails.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/host/space_memory.h"
#include "client/wire/connection.h"
#include "gemini/ids.h"
#include "gemini/shm/space_shm.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"

namespace gemini::client {

class NvmeRingClient {
 public:
  // A full ring of 4 MiB chunks, behind a slow disk's 20 MB/s.
  static constexpr absl::Duration kStuckAfter = absl::Seconds(60);
  // The checksum of a smaller chunk takes a few microseconds, and the chunk may be written before
  // its checksum is known.
  static constexpr int64_t kLateChecksumBytes = int64_t{256} << 10;
  // After a write whose checksum came too late and which was repeated, so many large writes have
  // their checksum computed first. So a "disk" that is always faster, such as a page cache, repeats
  // few writes.
  static constexpr int64_t kEarlyChecksums = 64;

  // `memory` and `connection` outlive this. `generation` is that of the lease. Without `checksums`
  // nothing is computed or compared.
  NvmeRingClient(const SpaceMemory& memory, UniqueFd kick, const Connection& connection,
                 uint64_t generation, bool checksums);
  NvmeRingClient(const NvmeRingClient&) = delete;
  NvmeRingClient& operator=(const NvmeRingClient&) = delete;

  // Moves the whole chunk and blocks until that is done. The caller sees to it that nobody else
  // writes to the HOST slot meanwhile. After a failed read its bytes are arbitrary.
  absl::Status Transfer(IoOperation operation, SlotId host_slot, SlotId nvme_slot);

  // Returns whether the server may still be working on a transfer although Transfer has returned.
  bool broken() const { return broken_.load(std::memory_order_acquire); }

 private:
  struct Completion {
    absl::StatusCode code;
    uint64_t contents;  // Of the NVMe slot; for a read, when it began.
  };
  absl::Status Read(SlotId host_slot, SlotId nvme_slot);
  absl::Status Write(SlotId host_slot, SlotId nvme_slot);
  absl::StatusOr<uint64_t> Submit(IoOperation operation, SlotId host_slot, SlotId nvme_slot,
                                  uint64_t contents);
  absl::StatusOr<Completion> AwaitCompletion(uint64_t sequence);
  absl::StatusOr<Completion> Move(IoOperation operation, SlotId host_slot, SlotId nvme_slot,
                                  uint64_t contents);
  uint32_t ChecksumOf(SlotId host_slot) const;
  // Compares the bytes of a read that the server reports as successful with their checksum.
  absl::Status CheckRead(SlotId host_slot, uint64_t contents) const;
  absl::Status CheckServer() const;

  const SpaceMemory& memory_;
  const UniqueFd kick_;
  const Connection& connection_;
  const uint64_t generation_;
  const bool checksums_;
  std::atomic<bool> broken_{false};
  // How many of the next large writes have their checksum computed first; none if 0 or less.
  std::atomic<int64_t> early_checksums_{0};
  Mutex mutex_;
  std::condition_variable entry_freed_;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  // By sequence % kIoRingEntries: someone still waits for the completion word of this entry.
  std::array<bool, kIoRingEntries> in_use_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace gemini::client
