// SPDX-License-Identifier: Apache-2.0
#include "server/spaces/space_reader.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "gemini/shm/commit_shm.h"

namespace gemini::server {
namespace {

int64_t Clamp(const std::atomic<uint64_t>& word) {
  return static_cast<int64_t>(std::min<uint64_t>(word.load(std::memory_order_relaxed),
                                                 std::numeric_limits<int64_t>::max()));
}

}  // namespace

const ClientSegmentHeaderShm& SpaceReader::header() const {
  return *reinterpret_cast<const ClientSegmentHeaderShm*>(segment_);
}

uint64_t SpaceReader::WordAt(int64_t offset_bytes, std::memory_order order) const {
  return reinterpret_cast<const std::atomic<uint64_t>*>(segment_ + offset_bytes)->load(order);
}

int64_t SpaceReader::CommittedStep(BundleId bundle, bool& invalid) const {
  const uint64_t word =
      WordAt(layout_.commit_offset + bundle.value() * 8, std::memory_order_acquire);
  const std::optional<CommitWord> commit = TryUnpackCommitWord(word, layout_.num_records);
  if (!commit.has_value()) {
    invalid = word != 0;
    return -1;
  }
  for (ChunkKind kind : kAllChunkKinds) {
    const uint64_t slot_word = WordAt(
        layout_.record_offset + commit->record * static_cast<int64_t>(sizeof(CommitRecordShm)) +
            static_cast<int64_t>(kind) * 8,
        std::memory_order_relaxed);
    if (slot_word == 0) continue;
    if (!TryUnpackChunkSlot(slot_word, slots_).has_value()) {
      invalid = true;
      return -1;
    }
  }
  return commit->step;
}

CommitSummary SpaceReader::ReadCommits() const {
  CommitSummary summary;
  for (int64_t i = 0; i < num_bundles_; ++i) {
    bool invalid = false;
    const int64_t step = CommittedStep(BundleId(i), invalid);
    if (invalid) ++summary.invalid;
    if (step < 0) continue;
    ++summary.committed;
    summary.min_step = summary.min_step < 0 ? step : std::min(summary.min_step, step);
    summary.max_step = std::max(summary.max_step, step);
  }
  return summary;
}

int64_t SpaceReader::DeviceNonModelBytes() const { return Clamp(header().device_non_model_bytes); }

SpaceCounts SpaceReader::Count() const {
  SpaceCounts counts;
  for (int64_t i = 0; i < layout_.num_chunks; ++i) {
    const std::optional<ChunkResidency> residency = TryUnpackResidency(
        WordAt(layout_.residency_offset + i * 8, std::memory_order_relaxed), slots_);
    if (!residency.has_value()) {
      ++counts.chunks_invalid;
    } else if (residency->state == ChunkState::kFree) {
      ++counts.chunks_free;
    } else if (residency->state == ChunkState::kCompute) {
      ++counts.chunks_compute;
    } else {
      ++counts.chunks_hold[residency->tier];
    }
  }
  counts.step = Clamp(header().step);
  counts.fetch_bytes = Clamp(header().fetch_bytes);
  counts.evict_bytes = Clamp(header().evict_bytes);
  counts.stall_ns = Clamp(header().stall_ns);
  counts.device_used_bytes = Clamp(header().device_used_bytes);
  counts.device_non_model_bytes = DeviceNonModelBytes();
  for (int i = 0; i < kNumStallCauses; ++i) {
    counts.stall_by_cause_ns[i] = Clamp(header().stall_by_cause_ns[i]);
  }
  for (int i = 0; i < kNumDivergences; ++i) counts.divergences[i] = Clamp(header().divergences[i]);
  counts.rounds = Clamp(header().rounds);
  counts.planned_rounds = Clamp(header().planned_rounds);
  counts.update_pending = Clamp(header().update_pending);
  counts.damaged_chunks = Clamp(header().damaged_chunks);
  const int64_t last_damaged = Clamp(header().last_damaged) - 1;
  if (last_damaged >= 0 && last_damaged < layout_.num_chunks) {
    counts.last_damaged = ChunkId(last_damaged);
  }
  counts.failed_nvme_writes = Clamp(header().failed_nvme_writes);
  counts.step_ns = Clamp(header().step_ns);
  counts.step_stall_ns = Clamp(header().step_stall_ns);
  counts.step_fetch_bytes = Clamp(header().step_fetch_bytes);
  counts.step_evict_bytes = Clamp(header().step_evict_bytes);
  counts.commits = ReadCommits();
  return counts;
}

SpaceCounts SpaceReader::CountUntouched() const {
  SpaceCounts counts;
  counts.chunks_free = layout_.num_chunks;
  return counts;
}

std::vector<ListedChunk> SpaceReader::List(int64_t first, int64_t count) const {
  std::vector<ListedChunk> chunks;
  const int64_t left = std::max<int64_t>(0, layout_.num_chunks - first);
  for (int64_t i = first; i < first + std::min(count, left); ++i) {
    ListedChunk chunk;
    chunk.chunk = ChunkId(i);
    const std::optional<ChunkResidency> residency = TryUnpackResidency(
        WordAt(layout_.residency_offset + i * 8, std::memory_order_relaxed), slots_);
    chunk.invalid = !residency.has_value();
    if (residency.has_value()) chunk.residency = *residency;
    bool commit_invalid = false;
    chunk.commit_step = CommittedStep(BundleOf(ChunkId(i)), commit_invalid);
    chunk.invalid = chunk.invalid || commit_invalid;
    chunks.push_back(chunk);
  }
  return chunks;
}

}  // namespace gemini::server
