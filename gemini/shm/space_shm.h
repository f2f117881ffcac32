// SPDX-License-Identifier: Apache-2.0
// Defines the two segments of a space, byte by byte. Both are memfds sealed against shrinking and
// growing. Client segment: created by the server, zero-filled, written by the space's client alone.
// The server does not trust it: it copies every 64-bit word once, then validates the copy. Server
// segment: written by the server alone (F_SEAL_FUTURE_WRITE), mapped read-only by the client.
// Ordering: a submission entry, except for a write's contents word, is complete before submit_tail
// is stored with release order. A completion word is stored with release order after its contents
// word, and before completion_count is raised and its waiters are woken. One call may wake those of
// several completions.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gemini/ids.h"
#include "gemini/shm/commit_shm.h"
#include "gemini/shm/intent_shm.h"
#include "gemini/stall_cause.h"

namespace gemini {

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// I/O requests a client may have in flight; a power of two. 256 chunks of 4 MiB are 1 GiB, more
// than any queue of one disk needs.
inline constexpr int64_t kIoRingEntries = 256;

enum class IoOperation : uint32_t { kRead = 1 /* NVME to HOST */, kWrite = 2 /* HOST to NVME */ };

// One request: the whole chunk between a HOST slot and an NVME slot of the space.
struct IoEntryShm {
  std::atomic<uint64_t> operation;  // IoOperation.
  std::atomic<uint64_t> host_slot;
  std::atomic<uint64_t> nvme_slot;
  // For a write: the slot's contents word from its completion on, or 0 while the client does not
  // know it. The server reads it when the write is done; if it is still 0, the slot has no
  // contents. For a read: 0.
  std::atomic<uint64_t> contents;
};
static_assert(sizeof(IoEntryShm) == 32);

// The contents word of an NVMe slot. It is 0 if no write has filled the slot or one is in flight.
// Otherwise the slot holds a chunk: with bit 32, bits 0 to 31 are its CRC32C; with
// kUncheckedContents it has none, because its client computes none.
inline constexpr uint64_t kUncheckedContents = uint64_t{1} << 33;
constexpr uint64_t PackContents(uint32_t crc32c) { return uint64_t{1} << 32 | crc32c; }
constexpr bool HasChecksum(uint64_t contents) { return contents >> 32 == 1; }
constexpr bool IsContents(uint64_t word) { return HasChecksum(word) || word == kUncheckedContents; }

// Head of the client segment. Behind it, at the offsets that ClientSegmentLayout gives, are the
// ring, the residency words, the commit words, the records and the intent's two slots.
struct ClientSegmentHeaderShm {
  std::atomic<uint64_t> submit_tail;  // Requests ever submitted; entry i is at i % kIoRingEntries.
  std::atomic<uint64_t> step;         // Steps completed, for memstat.
  std::atomic<uint64_t> fetch_bytes;  // HOST or NVME to DEVICE, ever.
  std::atomic<uint64_t> evict_bytes;  // DEVICE to HOST or NVME, ever.
  std::atomic<uint64_t> stall_ns;     // Time that operators waited for chunks, ever.
  std::atomic<uint64_t> device_used_bytes;                   // Chunks and non-model data, now.
  std::atomic<uint64_t> device_non_model_bytes;              // Now.
  std::atomic<uint64_t> stall_by_cause_ns[kNumStallCauses];  // Parts of stall_ns, by StallCause.
  std::atomic<uint64_t> divergences[kNumDivergences];  // Rounds that left their plan, by cause.
  std::atomic<uint64_t> rounds;              // In all phases, ever; in the session's first space.
  std::atomic<uint64_t> planned_rounds;      // Rounds that followed their plan to the end.
  std::atomic<uint64_t> update_pending;      // Bundles whose update is not committed yet, now.
  std::atomic<uint64_t> intent;              // As PackIntentWord.
  std::atomic<uint64_t> damaged_chunks;      // Chunks whose bytes on NVMe were found lost, ever.
  std::atomic<uint64_t> last_damaged;        // ChunkId + 1 of the last damaged chunk.
  std::atomic<uint64_t> failed_nvme_writes;  // Writes of chunks, ever; each chunk stayed in HOST.
  // Between the ends of the session's last two steps, of any of its models, in its first space: the
  // time, the part of it that operators waited for chunks, and the bytes moved over the link.
  std::atomic<uint64_t> step_ns;
  std::atomic<uint64_t> step_stall_ns;
  std::atomic<uint64_t> step_fetch_bytes;
  std::atomic<uint64_t> step_evict_bytes;
  std::atomic<uint64_t> reserved[4];
};
static_assert(sizeof(ClientSegmentHeaderShm) == 256);
static_assert(offsetof(ClientSegmentHeaderShm, submit_tail) == 0);
static_assert(offsetof(ClientSegmentHeaderShm, step) == 8);
static_assert(offsetof(ClientSegmentHeaderShm, device_non_model_bytes) == 48);
static_assert(offsetof(ClientSegmentHeaderShm, stall_by_cause_ns) == 56);
static_assert(offsetof(ClientSegmentHeaderShm, divergences) == 96);
static_assert(offsetof(ClientSegmentHeaderShm, rounds) == 136);
static_assert(offsetof(ClientSegmentHeaderShm, intent) == 160);
static_assert(offsetof(ClientSegmentHeaderShm, damaged_chunks) == 168);
static_assert(offsetof(ClientSegmentHeaderShm, failed_nvme_writes) == 184);
static_assert(offsetof(ClientSegmentHeaderShm, step_ns) == 192);

struct CommitRecordShm {
  std::atomic<uint64_t> slots[kNumChunkKinds];  // As CommitRecord.
};
static_assert(sizeof(CommitRecordShm) == 64);

// Byte offsets in the client segment of a space of `num_bundles` and `num_tensors`.
struct ClientSegmentLayout {
  explicit constexpr ClientSegmentLayout(int64_t num_bundles, int64_t num_tensors = 0)
      : num_chunks(num_bundles * kNumChunkKinds),
        num_records(NumCommitRecords(num_bundles)),
        ring_offset(sizeof(ClientSegmentHeaderShm)),
        residency_offset(ring_offset + kIoRingEntries * static_cast<int64_t>(sizeof(IoEntryShm))),
        commit_offset(residency_offset + num_chunks * 8),
        record_offset(commit_offset + num_bundles * 8),
        intent_offset(record_offset + num_records * static_cast<int64_t>(sizeof(CommitRecordShm))),
        size_bytes(intent_offset + kNumIntentSlots * IntentSlotBytes(num_tensors, num_bundles)) {}
  int64_t num_chunks;
  int64_t num_records;
  int64_t ring_offset;
  int64_t residency_offset;
  int64_t commit_offset;
  int64_t record_offset;
  int64_t intent_offset;
  int64_t size_bytes;
};

// Packs a completion word: (sequence of the request + 1) << 8 | absl::StatusCode. The word of
// request i is at i % kIoRingEntries; it is 0 before the first.
constexpr uint64_t PackCompletion(uint64_t sequence, int status_code) {
  return (sequence + 1) << 8 | static_cast<uint64_t>(status_code & 0xff);
}

// Returns the bit of a futex's bit set (FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET) that a completion
// wakes, so that it does not wake every waiter. A plain FUTEX_WAIT waits for every bit.
constexpr uint32_t CompletionBit(uint64_t sequence) { return uint32_t{1} << (sequence % 32); }

struct ServerSegmentShm {
  std::atomic<uint64_t> generation;  // The lease's; a client that holds another is fenced.
  std::atomic<uint32_t>
      completion_count;  // Futex word: raised by each completion, then woken, as CompletionBit.
  std::atomic<uint32_t> reserved0;
  std::atomic<uint64_t> reserved[6];
  std::atomic<uint64_t> completions[kIoRingEntries];
  // The contents word of the NVMe slot of the request that completed in this entry. For a read it
  // is the word at the read's beginning.
  std::atomic<uint64_t> contents[kIoRingEntries];
};
static_assert(offsetof(ServerSegmentShm, completion_count) == 8);
static_assert(offsetof(ServerSegmentShm, completions) == 64);
static_assert(offsetof(ServerSegmentShm, contents) == 64 + 8 * kIoRingEntries);
static_assert(sizeof(ServerSegmentShm) == 64 + 16 * kIoRingEntries);

}  // namespace gemini
