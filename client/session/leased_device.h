// SPDX-License-Identifier: Apache-2.0
// Holds a session's part of DEVICE: its arena, and how much of the arena the server grants. The
// server raises and lowers the grant, and numbers these changes by epochs. Whoever follows them
// maps, vacates and acknowledges (client/session/budget_follower.h).
// Thread: any, where a function does not say otherwise. Not after the session's Close, which
//         destroys this.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/copy/copy_engine.h"
#include "client/device/device_arena.h"
#include "client/wire/connection.h"
#include "gemini/shm/lease_shm.h"
#include "gemini/system/mapped_memory.h"

namespace gemini::client {

class LeasedDevice {
 public:
  // `segment` is the lease's, as the server writes it. `connection` and `copies` outlive this.
  LeasedDevice(Connection& connection, CopyEngine& copies, MappedMemory segment,
               std::unique_ptr<DeviceArena> arena, int64_t apart_bytes);
  LeasedDevice(const LeasedDevice&) = delete;
  LeasedDevice& operator=(const LeasedDevice&) = delete;

  std::byte* data() const { return arena_->data(); }
  int64_t size_bytes() const { return arena_->size_bytes(); }  // Of addresses.

  // Returns the new DEVICE budget if the server changed it since the last call; otherwise it costs
  // one relaxed load. Each change is returned to one thread only.
  std::optional<BudgetTarget> TakeChange();
  // Returns the bytes of a DEVICE in slabs that are apart: not for chunks, but for what the process
  // itself takes of the GPU.
  int64_t apart_bytes() const { return apart_bytes_.load(std::memory_order_relaxed); }
  // Returns where those bytes are kept, for a plan source.
  const std::atomic<int64_t>* apart() const { return &apart_bytes_; }
  // Sets them, from the next Map on. `bytes` >= 0. Must not be called between Map and Cut.
  void SetApart(int64_t bytes) { apart_bytes_.store(bytes, std::memory_order_relaxed); }
  // Returns how much of `device_bytes` is for chunks: all, or, if DEVICE is in slabs, as many whole
  // slabs as fit beside what is apart.
  int64_t ForChunks(int64_t device_bytes) const;

  // Maps the part of the target that is for chunks, and returns how many bytes may be used, which
  // are fewer if the server or the GPU refuses some. Call it before Residency::SetBudget; one
  // thread at a time. Costs a round trip if slabs are added.
  int64_t Map(const BudgetTarget& target);
  // Unmaps what is beyond that part. Call it after Residency::SetBudget. Errors: as
  // DeviceArena::Cut, and of the copy engine.
  absl::Status Cut(const BudgetTarget& target);
  // Returns the bytes of the slabs that are mapped now; 0 if DEVICE is not in slabs. One thread at
  // a time, as Map.
  int64_t mapped_slab_bytes() const { return arena_->slab_bytes() ? arena_->mapped_bytes() : 0; }
  // Tells the server that only the first target.device_bytes of the arena are used, and that
  // nothing beyond them is pinned or in flight. Bytes beyond are unmapped and lost. This is needed
  // when the target is less than the grant, which epochs that were not taken may have raised.
  // Blocks.
  // ABORTED: the target changed meanwhile; take it again. FAILED_PRECONDITION: nothing to
  //          acknowledge.
  absl::Status Acknowledge(const BudgetTarget& target);

 private:
  Connection& connection_;
  CopyEngine& copies_;
  const MappedMemory segment_;
  const std::unique_ptr<DeviceArena> arena_;
  std::atomic<uint64_t> seen_epoch_ = 0;
  std::atomic<int64_t> apart_bytes_;
};

// Returns how much of `device_bytes` is for chunks. `slab_bytes` is 0 if DEVICE is not in slabs.
int64_t DeviceBytesForChunks(int64_t device_bytes, int64_t apart_bytes, int64_t slab_bytes);

// Returns how long a request may take for which the server reserves the sum of these sizes. They
// may be any numbers, since a peer may have said them.
absl::Duration ReserveTimeout(std::initializer_list<int64_t> sizes_bytes);

}  // namespace gemini::client
