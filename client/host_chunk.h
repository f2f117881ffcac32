// SPDX-License-Identifier: Apache-2.0
// A HOST slot held in place: it is neither spilled nor given away while this lives.
// Owner:  move-only; does not outlive the ChunkStore that gave it.
// Thread: one at a time.
#pragma once
#include <cstddef>
#include <utility>

#include "gemini/ids.h"

namespace gemini::client {

class ChunkMover;
class ChunkStore;

// Whom a HostChunk tells of its end: the ChunkStore.
class HostSlotOwner {
 protected:
  ~HostSlotOwner() = default;

 private:
  friend class HostChunk;
  virtual void Release(SlotId slot, bool for_update) = 0;
};

class HostChunk {
 public:
  HostChunk() = default;
  HostChunk(HostChunk&& other) noexcept { *this = std::move(other); }
  HostChunk& operator=(HostChunk&& other) noexcept {
    if (this == &other) return *this;
    if (owner_ != nullptr) owner_->Release(slot_, for_update_);
    owner_ = std::exchange(other.owner_, nullptr);
    slot_ = other.slot_;
    data_ = std::exchange(other.data_, nullptr);
    for_update_ = other.for_update_;
    return *this;
  }
  ~HostChunk() {
    if (owner_ != nullptr) owner_->Release(slot_, for_update_);
  }

  std::byte* data() const { return data_; }
  explicit operator bool() const { return owner_ != nullptr; }
  // Held in a slot that is kept for updates: to be let go without waiting for anybody meanwhile.
  bool for_update() const { return for_update_; }

 private:
  friend class ChunkMover;
  friend class ChunkStore;
  HostChunk(HostSlotOwner* owner, SlotId slot, std::byte* data, bool for_update)
      : owner_(owner), slot_(slot), data_(data), for_update_(for_update) {}

  HostSlotOwner* owner_ = nullptr;
  SlotId slot_;
  std::byte* data_ = nullptr;
  bool for_update_ = false;
};

}  // namespace gemini::client
