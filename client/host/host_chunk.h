// SPDX-License-Identifier: Apache-2.0
// Holds a HOST slot in place: the slot is neither spilled nor reused while the handle lives.
// Owner:  move-only; does not outlive the ChunkStore that gave it.
// Thread: one at a time.
#pragma once
#include <cstddef>
#include <utility>

#include "gemini/ids.h"

namespace gemini::client {

// The interface through which a HostChunk reports to its space. Release ends its hold of the slot;
// CountEnding is called by EndsByItself.
class HostSlotOwner {
 public:
  virtual void Release(SlotId slot, bool for_update, bool ends_by_itself) = 0;
  virtual void CountEnding(SlotId slot) = 0;

 protected:
  ~HostSlotOwner() = default;
};

class HostChunk {
 public:
  HostChunk() = default;
  // Takes over the caller's hold of the slot. `data` is the slot's first byte; `owner` outlives
  // this.
  HostChunk(HostSlotOwner& owner, SlotId slot, std::byte* data, bool for_update)
      : owner_(&owner), slot_(slot), data_(data), for_update_(for_update) {}
  HostChunk(HostChunk&& other) noexcept { *this = std::move(other); }
  HostChunk& operator=(HostChunk&& other) noexcept {
    if (this == &other) return *this;
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    slot_ = other.slot_;
    data_ = std::exchange(other.data_, nullptr);
    for_update_ = other.for_update_;
    ends_by_itself_ = other.ends_by_itself_;
    return *this;
  }
  ~HostChunk() { Release(); }

  std::byte* data() const { return data_; }
  explicit operator bool() const { return owner_ != nullptr; }
  bool IsOf(const HostSlotOwner& owner) const { return owner_ == &owner; }
  SlotId slot() const { return slot_; }
  // Returns whether the slot is one of those that are reserved for updates. Its holder must release
  // it without waiting for any other thread.
  bool for_update() const { return for_update_; }
  // Promises that from now on the holder waits for nothing but a copy before it releases the slot.
  // A thread that needs the slot, or needs it not to be held, then waits instead of returning an
  // error. Call it at most once, and not if for_update().
  void EndsByItself() {
    owner_->CountEnding(slot_);
    ends_by_itself_ = true;
  }
  // Empties the handle and leaves the hold to the caller.
  void Detach() {
    owner_ = nullptr;
    data_ = nullptr;
  }

 private:
  void Release() {
    if (owner_ != nullptr) owner_->Release(slot_, for_update_, ends_by_itself_);
  }

  HostSlotOwner* owner_ = nullptr;
  SlotId slot_;
  std::byte* data_ = nullptr;
  bool for_update_ = false;
  bool ends_by_itself_ = false;
};

}  // namespace gemini::client
