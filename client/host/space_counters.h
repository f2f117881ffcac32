// SPDX-License-Identifier: Apache-2.0
// Writes the counters in the header of a space's client segment, which memstat shows, as their only
// writer.
// Thread: any. The counts of submitted I/O belong to NvmeRingClient.
// Units:  bytes and nanoseconds.
#pragma once
#include <cstdint>

#include "gemini/ids.h"
#include "gemini/shm/space_shm.h"
#include "gemini/stall_cause.h"

namespace gemini::client {

class SpaceCounters {
 public:
  // `header` outlives this.
  explicit SpaceCounters(ClientSegmentHeaderShm* header) : header_(header) {}

  void AddFetchBytes(int64_t size_bytes) { Add(header_->fetch_bytes, size_bytes); }
  void AddEvictBytes(int64_t size_bytes) { Add(header_->evict_bytes, size_bytes); }
  void AddStallNs(StallCause cause, int64_t stall_ns) {
    Add(header_->stall_ns, stall_ns);
    Add(header_->stall_by_cause_ns[static_cast<size_t>(cause)], stall_ns);
  }
  void AddDivergence(Divergence cause) { Add(header_->divergences[static_cast<size_t>(cause)], 1); }
  void AddRound(bool followed_plan) {
    Add(header_->rounds, 1);
    if (followed_plan) Add(header_->planned_rounds, 1);
  }
  void AddDamagedChunk(ChunkId chunk) {
    Set(header_->last_damaged, chunk.value() + 1);
    Add(header_->damaged_chunks, 1);
  }
  void AddFailedNvmeWrite() { Add(header_->failed_nvme_writes, 1); }
  void SetUpdatePending(int64_t num_bundles) { Set(header_->update_pending, num_bundles); }
  void SetStep(int64_t step) { Set(header_->step, step); }
  // Sets the figures of the step that has just ended.
  void SetLastStep(int64_t step_ns, int64_t stall_ns, int64_t fetch_bytes, int64_t evict_bytes) {
    Set(header_->step_ns, step_ns);
    Set(header_->step_stall_ns, stall_ns);
    Set(header_->step_fetch_bytes, fetch_bytes);
    Set(header_->step_evict_bytes, evict_bytes);
  }
  void SetDeviceBytes(int64_t used_bytes, int64_t non_model_bytes) {
    Set(header_->device_used_bytes, used_bytes);
    Set(header_->device_non_model_bytes, non_model_bytes);
  }

 private:
  static void Add(std::atomic<uint64_t>& word, int64_t amount) {
    word.fetch_add(static_cast<uint64_t>(amount), std::memory_order_relaxed);
  }
  static void Set(std::atomic<uint64_t>& word, int64_t value) {
    word.store(static_cast<uint64_t>(value), std::memory_order_relaxed);
  }

  ClientSegmentHeaderShm* const header_;
};

}  // namespace gemini::client
