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
  virtual void Release(SlotId slot, bool for_update, bool ends_by_itself) = 0;
  virtual void CountEnding(SlotId slot) = 0;
};

class HostChunk {
 public:
  HostChunk() = default;
  HostChunk(HostChunk&& other) noexcept { *this = std::move(other); }
  HostChunk& operator=(HostChunk&& other) noexcept {
    if (this == &other) return *this;
    LetGo();
    owner_ = std::exchange(other.owner_, nullptr);
    slot_ = other.slot_;
    data_ = std::exchange(other.data_, nullptr);
    for_update_ = other.for_update_;
    ends_by_itself_ = other.ends_by_itself_;
    return *this;
  }
  ~HostChunk() { LetGo(); }

  std::byte* data() const { return data_; }
  explicit operator bool() const { return owner_ != nullptr; }
  // Held in a slot that is kept for updates: to be let go without waiting for anybody meanwhile.
  bool for_update() const { return for_update_; }
  // Says that from now on the holder waits for a copy alone before it lets go, whatever others do:
  // who needs the slot, or that nobody holds it, waits instead of giving up. Once; not in a slot
  // that is kept for updates.
  void EndsByItself() {
    owner_->CountEnding(slot_);
    ends_by_itself_ = true;
  }

 private:
  friend class ChunkMover;
  friend class ChunkStore;
  HostChunk(HostSlotOwner* owner, SlotId slot, std::byte* data, bool for_update)
      : owner_(owner), slot_(slot), data_(data), for_update_(for_update) {}

  void LetGo() {
    if (owner_ != nullptr) owner_->Release(slot_, for_update_, ends_by_itself_);
  }

  HostSlotOwner* owner_ = nullptr;
  SlotId slot_;
  std::byte* data_ = nullptr;
  bool for_update_ = false;
  bool ends_by_itself_ = false;
};

}  // namespace gemini::client
