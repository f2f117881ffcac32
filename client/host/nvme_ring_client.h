// SPDX-License-Identifier: Apache-2.0
// Asks the server to move chunks between HOST and NVME slots of a space: posts on the ring in the
// client segment, kicks the server's eventfd, waits on the completion words in the server segment.
// Checks: with each write goes the CRC32C of the HOST slot, and each read is compared with that of
//         the write that filled the NVMe slot: from memory to memory, so whatever changed a byte
//         between is found.
// Thread: any; up to kIoRingEntries transfers are under way at once, more wait for room. The
//         calling thread computes the checksum: of a chunk of kLateChecksumBytes or more that is
//         written, while the disk is at it.
// Errors: the server's, RESOURCE_EXHAUSTED among them. DATA_LOSS: the disk failed, no whole write
//         of the slot was completed, or a read brought other bytes than were written. ABORTED: the
//         lease was fenced.
//         UNAVAILABLE: the server is gone, noticed within a second, or a transfer takes longer than
//         kStuckAfter; the server may then still write to the slot, and every later transfer fails.
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
  // Smaller ones take a few microseconds, and may be written before their checksum is there.
  static constexpr int64_t kLateChecksumBytes = int64_t{256} << 10;
  // After a write whose checksum came too late, for so many the checksum is computed first: a
  // "disk" that is always faster (a page cache) takes little more than each write once.
  static constexpr int64_t kEarlyChecksums = 64;

  // `memory` and `connection` outlive this. `generation` is that of the lease. Without `checksums`
  // nothing is computed or compared.
  NvmeRingClient(const SpaceMemory& memory, UniqueFd kick, const Connection& connection,
                 uint64_t generation, bool checksums);
  NvmeRingClient(const NvmeRingClient&) = delete;
  NvmeRingClient& operator=(const NvmeRingClient&) = delete;

  // Moves the whole chunk and blocks until it is done. Nobody writes to the HOST slot meanwhile;
  // after a read that failed its bytes are arbitrary.
  absl::Status Transfer(IoOperation operation, SlotId host_slot, SlotId nvme_slot);

  // Returns whether a transfer may still be under way though Transfer has returned.
  bool broken() const { return broken_.load(std::memory_order_acquire); }

 private:
  struct Completion {
    absl::StatusCode code;
    uint64_t contents;  // Of the NVMe slot; a read's as it began.
  };
  absl::Status Read(SlotId host_slot, SlotId nvme_slot);
  absl::Status Write(SlotId host_slot, SlotId nvme_slot);
  absl::StatusOr<uint64_t> Submit(IoOperation operation, SlotId host_slot, SlotId nvme_slot,
                                  uint64_t contents);
  absl::StatusOr<Completion> AwaitCompletion(uint64_t sequence);
  absl::StatusOr<Completion> Move(IoOperation operation, SlotId host_slot, SlotId nvme_slot,
                                  uint64_t contents);
  uint32_t ChecksumOf(SlotId host_slot) const;
  // Judges a read that the server calls good.
  absl::Status CheckRead(SlotId host_slot, uint64_t contents) const;
  absl::Status CheckServer() const;

  const SpaceMemory& memory_;
  const UniqueFd kick_;
  const Connection& connection_;
  const uint64_t generation_;
  const bool checksums_;
  std::atomic<bool> broken_{false};
  // Large writes to come whose checksum is computed first; 0 or less: none.
  std::atomic<int64_t> early_checksums_{0};
  Mutex mutex_;
  std::condition_variable entry_freed_;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  // By sequence % kIoRingEntries: someone still waits for the completion word of this entry.
  std::array<bool, kIoRingEntries> in_use_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace gemini::client
