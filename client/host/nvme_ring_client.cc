// SPDX-License-Identifier: Apache-2.0
#include "client/host/nvme_ring_client.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "gemini/crc32c.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// How soon a dead server is noticed while a transfer waits.
constexpr absl::Duration kLookRound = absl::Milliseconds(200);

// Sleeps until the word differs from `seen`, someone wakes one of `bits`, or `timeout` has passed.
// Works on a read-only mapping; not FUTEX_PRIVATE, for the server wakes it through its own.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, uint32_t bits,
               absl::Duration timeout) {
  const timespec until = absl::ToTimespec(MonotonicNow() + timeout);
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &until, nullptr, bits);
}

absl::Status FailedIo(absl::StatusCode code) {
  return absl::Status(code, "the server's I/O failed; its log says why");
}

}  // namespace

NvmeRingClient::NvmeRingClient(const SpaceMemory& memory, UniqueFd kick,
                               const Connection& connection, uint64_t generation, bool checksums)
    : memory_(memory),
      kick_(std::move(kick)),
      connection_(connection),
      generation_(generation),
      checksums_(checksums) {}

absl::Status NvmeRingClient::Transfer(IoOperation operation, SlotId host_slot, SlotId nvme_slot) {
  const bool reads = operation == IoOperation::kRead;
  const absl::Status status = reads ? Read(host_slot, nvme_slot) : Write(host_slot, nvme_slot);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(reads ? "read NVME slot " : "write NVME slot ",
                                                  nvme_slot.value(), ": ", status.message()));
}

absl::Status NvmeRingClient::Read(SlotId host_slot, SlotId nvme_slot) {
  GEMINI_ASSIGN_OR_RETURN(const Completion done, Move(IoOperation::kRead, host_slot, nvme_slot, 0));
  if (done.code == absl::StatusCode::kDataLoss && done.contents == 0) {
    return absl::DataLossError("no write of it was completed");
  }
  if (done.code != absl::StatusCode::kOk) return FailedIo(done.code);
  return checksums_ ? CheckRead(host_slot, done.contents) : absl::OkStatus();
}

absl::Status NvmeRingClient::Write(SlotId host_slot, SlotId nvme_slot) {
  uint64_t contents = checksums_ ? 0 : kUncheckedContents;
  if (checksums_ && memory_.shape().chunk_bytes >= kLateChecksumBytes &&
      early_checksums_.fetch_sub(1, std::memory_order_relaxed) <= 0) {
    GEMINI_ASSIGN_OR_RETURN(const uint64_t sequence,
                            Submit(IoOperation::kWrite, host_slot, nvme_slot, 0));
    contents = PackContents(ChecksumOf(host_slot));
    memory_.ring()[sequence % kIoRingEntries].contents.store(contents, std::memory_order_relaxed);
    GEMINI_ASSIGN_OR_RETURN(const Completion done, AwaitCompletion(sequence));
    if (done.code != absl::StatusCode::kOk) return FailedIo(done.code);
    if (done.contents == contents) return absl::OkStatus();
    // The disk was faster, and the slot has no contents: again, with the word, which is known now.
    early_checksums_.store(kEarlyChecksums, std::memory_order_relaxed);
  }
  if (contents == 0) contents = PackContents(ChecksumOf(host_slot));
  GEMINI_ASSIGN_OR_RETURN(const Completion done,
                          Move(IoOperation::kWrite, host_slot, nvme_slot, contents));
  return done.code == absl::StatusCode::kOk ? absl::OkStatus() : FailedIo(done.code);
}

absl::StatusOr<NvmeRingClient::Completion> NvmeRingClient::Move(IoOperation operation,
                                                                SlotId host_slot, SlotId nvme_slot,
                                                                uint64_t contents) {
  GEMINI_ASSIGN_OR_RETURN(const uint64_t sequence,
                          Submit(operation, host_slot, nvme_slot, contents));
  return AwaitCompletion(sequence);
}

uint32_t NvmeRingClient::ChecksumOf(SlotId host_slot) const {
  return Crc32c(
      {memory_.slot_address(host_slot), static_cast<size_t>(memory_.shape().chunk_bytes)});
}

absl::Status NvmeRingClient::CheckRead(SlotId host_slot, uint64_t contents) const {
  if (!HasChecksum(contents)) return absl::DataLossError("nobody knows the checksum of its bytes");
  const uint32_t read = ChecksumOf(host_slot);
  const auto written = static_cast<uint32_t>(contents);
  if (read == written) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "its bytes have the CRC32C ", absl::Hex(read, absl::kZeroPad8), ", and had ",
      absl::Hex(written, absl::kZeroPad8),
      " when they were written: check the disk and the memory, and resume from the last save"));
}

absl::StatusOr<uint64_t> NvmeRingClient::Submit(IoOperation operation, SlotId host_slot,
                                                SlotId nvme_slot, uint64_t contents) {
  MutexLock lock(mutex_);
  for (;;) {
    GEMINI_RETURN_IF_ERROR(CheckServer());
    // The completion word of entry i is reused by entry i + kIoRingEntries: not before it was read.
    if (!in_use_[next_sequence_ % kIoRingEntries]) break;
    mutex_.WaitFor(entry_freed_);
  }
  const uint64_t sequence = next_sequence_++;
  in_use_[sequence % kIoRingEntries] = true;
  IoEntryShm& entry = memory_.ring()[sequence % kIoRingEntries];
  entry.operation.store(static_cast<uint64_t>(operation), std::memory_order_relaxed);
  entry.host_slot.store(static_cast<uint64_t>(host_slot.value()), std::memory_order_relaxed);
  entry.nvme_slot.store(static_cast<uint64_t>(nvme_slot.value()), std::memory_order_relaxed);
  entry.contents.store(contents, std::memory_order_relaxed);
  memory_.header()->submit_tail.store(sequence + 1, std::memory_order_release);
  const uint64_t one = 1;
  // The counter cannot overflow: the server reads it long before 2^64 kicks.
  if (::write(kick_.get(), &one, sizeof(one)) != sizeof(one)) {
    broken_.store(true, std::memory_order_release);
    return ErrnoStatus(errno, "kick the server");
  }
  return sequence;
}

absl::StatusOr<NvmeRingClient::Completion> NvmeRingClient::AwaitCompletion(uint64_t sequence) {
  const ServerSegmentShm& server = *memory_.server_segment();
  const std::atomic<uint64_t>& completion = server.completions[sequence % kIoRingEntries];
  const absl::Duration deadline = MonotonicNow() + kStuckAfter;
  absl::Status result;
  Completion done = {};
  for (;;) {
    const uint32_t count = server.completion_count.load(std::memory_order_acquire);
    const uint64_t word = completion.load(std::memory_order_acquire);
    if (word >> 8 == (sequence + 1) % (uint64_t{1} << 56)) {
      const int code = static_cast<int>(word & 0xff);
      done.code = code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
      // Before the entry is free for another request.
      done.contents = server.contents[sequence % kIoRingEntries].load(std::memory_order_relaxed);
      break;
    }
    result = CheckServer();
    if (result.ok() && MonotonicNow() > deadline) {
      result = absl::UnavailableError(
          absl::StrCat("no answer within ", absl::FormatDuration(kStuckAfter),
                       ": is geminid, or this program's own server, stopped, or the disk hung?"));
    }
    if (!result.ok()) {
      broken_.store(true, std::memory_order_release);
      break;
    }
    FutexWait(server.completion_count, count, CompletionBit(sequence), kLookRound);
  }
  MutexLock lock(mutex_);
  in_use_[sequence % kIoRingEntries] = false;
  entry_freed_.notify_all();
  if (!result.ok()) return result;
  return done;
}

absl::Status NvmeRingClient::CheckServer() const {
  // Before broken_: the first transfer that ends so sets it, and the others have the same reason.
  if (memory_.server_segment()->generation.load(std::memory_order_acquire) != generation_) {
    return absl::AbortedError("the server fenced this lease: the session is over");
  }
  GEMINI_RETURN_IF_ERROR(connection_.CheckPeer());
  if (broken()) return absl::UnavailableError("an earlier transfer never came back");
  return absl::OkStatus();
}

}  // namespace gemini::client
