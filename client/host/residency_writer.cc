// SPDX-License-Identifier: Apache-2.0
#include "client/host/residency_writer.h"

#include "gemini/system/check.h"

namespace gemini::client {

ResidencyWriter::ResidencyWriter(std::atomic<uint64_t>* words, int64_t num_chunks)
    : words_(words), chunks_(num_chunks) {}

void ResidencyWriter::SetBelow(ChunkId chunk, std::optional<ChunkSlot> slot) {
  MutexLock lock(mutex_);
  chunks_[chunk.value()].below = slot;
  if (!chunks_[chunk.value()].on_device) PublishBelow(chunk);
}

void ResidencyWriter::EnterDevice(ChunkId chunk, SlotId slot) {
  MutexLock lock(mutex_);
  GEMINI_CHECK(!chunks_[chunk.value()].on_device);
  chunks_[chunk.value()].on_device = true;
  Publish(chunk, {.state = ChunkState::kHold, .tier = Tier::kDevice, .slot = slot});
}

void ResidencyWriter::SetOnDevice(ChunkId chunk, SlotId slot, int pins, bool dirty) {
  Publish(chunk, {.state = pins > 0 ? ChunkState::kCompute : ChunkState::kHold,
                  .tier = Tier::kDevice,
                  .dirty = dirty,
                  .pins = pins,
                  .slot = slot});
}

void ResidencyWriter::LeaveDevice(ChunkId chunk) {
  MutexLock lock(mutex_);
  GEMINI_CHECK(chunks_[chunk.value()].on_device);
  chunks_[chunk.value()].on_device = false;
  PublishBelow(chunk);
}

void ResidencyWriter::PublishBelow(ChunkId chunk) {
  const std::optional<ChunkSlot>& below = chunks_[chunk.value()].below;
  if (below) {
    Publish(chunk, {.state = ChunkState::kHold, .tier = below->tier, .slot = below->slot});
  } else {
    Publish(chunk, {});
  }
}

void ResidencyWriter::Publish(ChunkId chunk, const ChunkResidency& residency) {
  ChunkState& state = chunks_[chunk.value()].state;
  // A second pin, or the loss of one of two, is no change of state.
  GEMINI_CHECK(state == residency.state || IsLegalChange(state, residency.state));
  state = residency.state;
  words_[chunk.value()].store(PackResidency(residency), std::memory_order_relaxed);
}

}  // namespace gemini::client
