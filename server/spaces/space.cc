// SPDX-License-Identifier: Apache-2.0
#include "server/spaces/space.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {

Space::Space(uint64_t id, SpacePlan plan, SpaceMemory memory, int64_t device_slots,
             uint64_t generation)
    : id_(id), plan_(std::move(plan)), memory_(std::move(memory)), device_slots_(device_slots) {
  server().generation.store(generation, std::memory_order_release);
}

const ClientSegmentHeaderShm& Space::client() const {
  return *reinterpret_cast<const ClientSegmentHeaderShm*>(memory_.client_map.data());
}

ServerSegmentShm& Space::server() const {
  return *reinterpret_cast<ServerSegmentShm*>(memory_.server_map.data());
}

const IoEntryShm& Space::entry(uint64_t sequence) const {
  const std::byte* ring = memory_.client_map.data() +
                          ClientSegmentLayout(plan_.num_bundles, plan_.num_tensors).ring_offset;
  return reinterpret_cast<const IoEntryShm*>(ring)[sequence % kIoRingEntries];
}

absl::StatusOr<Space::Transfer> Space::Validate(const IoEntryShm& shared) const {
  // Each word once: the client may change it at any time. A write's contents word is looked at
  // again by Complete, which keeps what it finds then.
  const uint64_t operation = shared.operation.load(std::memory_order_relaxed);
  const uint64_t host_slot = shared.host_slot.load(std::memory_order_relaxed);
  const uint64_t nvme_slot = shared.nvme_slot.load(std::memory_order_relaxed);
  const uint64_t contents = shared.contents.load(std::memory_order_relaxed);
  const bool reads = operation == static_cast<uint64_t>(IoOperation::kRead) && contents == 0;
  const bool writes = operation == static_cast<uint64_t>(IoOperation::kWrite) &&
                      (contents == 0 || IsContents(contents));
  // Without texts: a status that has one is an allocation.
  if (!(reads || writes) || host_slot >= static_cast<uint64_t>(plan_.host_slots) ||
      nvme_slot >= static_cast<uint64_t>(plan_.nvme_slots)) {
    return absl::InvalidArgumentError("");  // Outside the space.
  }
  const uint64_t found = memory_.nvme_contents[nvme_slot];
  if (reads && found == 0) return absl::DataLossError("");
  const int64_t per_slab = memory_.host.slots_per_extent;
  const TierExtent& slab = memory_.host.extents[host_slot / per_slab];
  const SlotPlace place = memory_.nvme_places[nvme_slot];
  const TierExtent& extent = memory_.nvme.extents[place.extent];
  return Transfer{.nvme_slot = static_cast<int64_t>(nvme_slot),
                  .nvme_place = extent.place,
                  .found = reads ? found : 0,
                  .transfer = {.operation = static_cast<IoOperation>(operation),
                               .host_fd = slab.fd.get(),
                               .host_offset_bytes =
                                   static_cast<int64_t>(host_slot % per_slab) * plan_.chunk_bytes,
                               .nvme_fd = extent.fd.get(),
                               .nvme_offset_bytes = place.slot * plan_.chunk_bytes,
                               .size_bytes = plan_.chunk_bytes}};
}

absl::StatusOr<uint64_t> Space::Waiting() const {
  const uint64_t waiting = client().submit_tail.load(std::memory_order_acquire) - head_;
  if (waiting > static_cast<uint64_t>(kIoRingEntries)) {
    return absl::FailedPreconditionError(absl::StrCat("space ", plan_.name,
                                                      ": the I/O ring claims ", waiting,
                                                      " waiting requests of ", kIoRingEntries));
  }
  return waiting;
}

bool Space::HasRequests() const {
  if (fenced_ || in_flight_ >= kIoRingEntries) return false;
  const absl::StatusOr<uint64_t> waiting = Waiting();
  return !waiting.ok() || *waiting > 0;
}

absl::StatusOr<bool> Space::TakeRequests(int64_t most,
                                         absl::FunctionRef<void(const Transfer&)> take) {
  if (fenced_) return false;
  GEMINI_ASSIGN_OR_RETURN(const uint64_t waiting, Waiting());
  const int64_t count =
      std::min({most, static_cast<int64_t>(waiting), kIoRingEntries - in_flight_});
  uint32_t num_refused = 0, refused_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t sequence = head_++;
    ++in_flight_;
    absl::StatusOr<Transfer> taken = Validate(entry(sequence));
    if (!taken.ok()) {
      Report(sequence, taken.status().code(), 0);
      ++num_refused;
      refused_bits |= CompletionBit(sequence);
      continue;
    }
    taken->sequence = sequence;
    // Half of it may be there soon.
    if (taken->transfer.operation == IoOperation::kWrite) {
      memory_.nvme_contents[taken->nvme_slot] = 0;
    }
    take(*taken);
  }
  // Once for all: waking is a system call, the rest of a refusal some memory accesses.
  if (num_refused > 0) WakeClient(num_refused, refused_bits);
  return HasRequests();
}

void Space::Complete(const Transfer& taken, absl::StatusCode code) {
  uint64_t contents = taken.found;
  if (taken.transfer.operation == IoOperation::kWrite && code == absl::StatusCode::kOk) {
    const uint64_t word = entry(taken.sequence).contents.load(std::memory_order_relaxed);
    contents = IsContents(word) ? word : 0;
    memory_.nvme_contents[taken.nvme_slot] = contents;
  }
  Report(taken.sequence, code, contents);
  WakeClient(1, CompletionBit(taken.sequence));
}

void Space::Report(uint64_t sequence, absl::StatusCode code, uint64_t contents) {
  GEMINI_CHECK(in_flight_ > 0);
  --in_flight_;
  server().contents[sequence % kIoRingEntries].store(contents, std::memory_order_relaxed);
  server().completions[sequence % kIoRingEntries].store(
      PackCompletion(sequence, static_cast<int>(code)), std::memory_order_release);
}

void Space::WakeClient(uint32_t num_completions, uint32_t bits) {
  server().completion_count.fetch_add(num_completions, std::memory_order_release);
  ::syscall(SYS_futex, &server().completion_count, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr,
            bits);
}

void Space::Fence(uint64_t generation) {
  if (fenced_) return;
  server().generation.store(generation, std::memory_order_release);
  const absl::StatusOr<uint64_t> waiting = Waiting();
  const uint64_t num_aborted = waiting.ok() ? *waiting : 0;
  for (uint64_t i = 0; i < num_aborted; ++i) {
    ++in_flight_;
    Report(head_++, absl::StatusCode::kAborted, 0);
  }
  fenced_ = true;
  WakeClient(static_cast<uint32_t>(num_aborted) + 1, FUTEX_BITSET_MATCH_ANY);
}

SpaceMemory Space::TakeMemory() {
  GEMINI_CHECK(in_flight_ == 0);
  return std::move(memory_);
}

}  // namespace gemini::server
