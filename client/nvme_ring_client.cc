// SPDX-License-Identifier: Apache-2.0
#include "client/nvme_ring_client.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/errno_status.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// How soon a dead server is noticed while a transfer waits.
constexpr absl::Duration kLookRound = absl::Milliseconds(200);

// Sleeps until the word differs from `seen`, someone wakes it, or `timeout` has passed. Works on a
// read-only mapping; not FUTEX_PRIVATE, for the server wakes it through its own.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(timeout);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace

NvmeRingClient::NvmeRingClient(const SpaceMemory& memory, UniqueFd kick,
                               const Connection& connection, uint64_t generation)
    : memory_(memory), kick_(std::move(kick)), connection_(connection), generation_(generation) {}

absl::Status NvmeRingClient::Transfer(IoOperation operation, SlotId host_slot, SlotId nvme_slot) {
  GEMINI_ASSIGN_OR_RETURN(const uint64_t sequence, Submit(operation, host_slot, nvme_slot));
  const absl::Status status = AwaitCompletion(sequence);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(operation == IoOperation::kRead ? "read NVME slot " : "write NVME slot ",
                   nvme_slot.value(), ": ", status.message()));
}

absl::StatusOr<uint64_t> NvmeRingClient::Submit(IoOperation operation, SlotId host_slot,
                                                SlotId nvme_slot) {
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
  entry.reserved.store(0, std::memory_order_relaxed);
  memory_.header()->submit_tail.store(sequence + 1, std::memory_order_release);
  const uint64_t one = 1;
  // The counter cannot overflow: the server reads it long before 2^64 kicks.
  if (::write(kick_.get(), &one, sizeof(one)) != sizeof(one)) {
    broken_.store(true, std::memory_order_release);
    return ErrnoStatus(errno, "kick the server");
  }
  return sequence;
}

absl::Status NvmeRingClient::AwaitCompletion(uint64_t sequence) {
  const ServerSegmentShm& server = *memory_.server_segment();
  const std::atomic<uint64_t>& completion = server.completions[sequence % kIoRingEntries];
  const absl::Time deadline = absl::Now() + kStuckAfter;
  absl::Status result;
  for (;;) {
    const uint32_t count = server.completion_count.load(std::memory_order_acquire);
    const uint64_t word = completion.load(std::memory_order_acquire);
    if (word >> 8 == (sequence + 1) % (uint64_t{1} << 56)) {
      const int code = static_cast<int>(word & 0xff);
      if (code != 0) {
        result = absl::Status(
            code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
            "the server's I/O failed; its log says why");
      }
      break;
    }
    result = CheckServer();
    if (result.ok() && absl::Now() > deadline) {
      result = absl::UnavailableError(absl::StrCat("no answer within ",
                                                   absl::FormatDuration(kStuckAfter),
                                                   ": is geminid stopped, or the disk hung?"));
    }
    if (!result.ok()) {
      broken_.store(true, std::memory_order_release);
      break;
    }
    FutexWait(server.completion_count, count, kLookRound);
  }
  MutexLock lock(mutex_);
  in_use_[sequence % kIoRingEntries] = false;
  entry_freed_.notify_all();
  return result;
}

absl::Status NvmeRingClient::CheckServer() const {
  if (broken()) return absl::UnavailableError("an earlier transfer never came back");
  if (memory_.server_segment()->generation.load(std::memory_order_acquire) != generation_) {
    return absl::AbortedError("the server fenced this lease: the session is over");
  }
  if (connection_.PeerGone()) {
    return absl::UnavailableError(
        "the server is gone: resume from the last save once geminid runs again");
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
