// SPDX-License-Identifier: Apache-2.0
#include "client/device/copy_batch.h"

#include <utility>

#include "client/host/edited_parameter.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

absl::StatusOr<CopyEvent> CopyBatch::WriteBack(ChunkStore& store, ChunkId chunk,
                                               const std::byte* device, CopyEvent after) {
  const bool committed = store.IsCommitted(chunk);
  const bool has_master = HasMaster(store, chunk) && !IsOnDeviceAlone(store, BundleOf(chunk));
  if (has_master) Drain();  // What follows takes more slots than a batch holds, and is rare.
  GEMINI_ASSIGN_OR_RETURN(
      HostChunk host,
      Acquire([&] { return committed ? store.AcquireSpare() : store.AcquireForWriteBack(chunk); }));
  const CopyEvent event =
      copies_.Copy(CopyStream::kEvict, host.data(), device, store.memory().shape().payload_bytes(),
                   after, store.timeline().CopyOf(chunk));
  if (has_master) {
    copies_.Wait(event);
    GEMINI_RETURN_IF_ERROR(copies_.status());
    GEMINI_RETURN_IF_ERROR(CommitEdited(store, chunk, std::move(host)));
    return event;
  }
  entries_.push_back({.event = event,
                      .host = std::move(host),
                      .commit_to = committed ? &store : nullptr,
                      .chunk = chunk});
  return event;
}

void CopyBatch::FinishOldest() {
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  copies_.Wait(entry.event);
  // A copy that failed is not committed: the version before stays the valid one.
  if (entry.commit_to == nullptr || !copies_.status().ok()) return;
  // It was committed when the copy began, and nothing makes a committed chunk uncommitted.
  GEMINI_CHECK(entry.commit_to->Replace(entry.chunk, std::move(entry.host)).ok());
}

void CopyBatch::Drain() {
  while (!entries_.empty()) FinishOldest();
}

absl::StatusOr<HostChunk> CopyBatch::Acquire(
    absl::FunctionRef<absl::StatusOr<HostChunk>()> acquire) {
  if (entries_.size() >= kBatchSlots) FinishOldest();
  // The updater may wait for the slot of a late gradient, and what is acquired next for the
  // updater.
  if (!entries_.empty() && entries_.back().host.for_update()) Drain();
  absl::StatusOr<HostChunk> host = acquire();
  if (host.ok() || !absl::IsResourceExhausted(host.status()) || entries_.empty()) return host;
  Drain();
  return acquire();
}

}  // namespace gemini::client
