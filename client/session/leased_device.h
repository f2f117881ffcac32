// SPDX-License-Identifier: Apache-2.0
// A session's part of DEVICE: its arena, and how much of that the server grants from time to time.
// The server raises and lowers the grant by epochs; who follows them maps, vacates and acknowledges
// (client/session/budget_follower.h).
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
  int64_t size_bytes() const { return arena_->size_bytes(); }  // Of addresses, for what is wanted.

  // Returns the DEVICE budget from now on, if the server changed it since the last call: one
  // relaxed load where it did not. One of several threads gets it.
  std::optional<BudgetTarget> TakeChange();
  // Returns the bytes of DEVICE in slabs that are not for chunks, but for what the process takes.
  int64_t apart_bytes() const { return apart_bytes_.load(std::memory_order_relaxed); }
  // Returns where those bytes are kept, for a plan source.
  const std::atomic<int64_t>* apart() const { return &apart_bytes_; }
  // Sets them, to at least 0, from the next Map on. Must not be called between that and Cut.
  void SetApart(int64_t bytes) { apart_bytes_.store(bytes, std::memory_order_relaxed); }
  // Returns what of `device_bytes` is for chunks: all, or of slabs the whole ones beside what is
  // apart.
  int64_t ForChunks(int64_t device_bytes) const;

  // Maps what of the target is for chunks, and returns how much of it may be used: less, where the
  // server or the GPU refuses it. Before Residency::SetBudget; one thread at a time. A round trip
  // where slabs are added.
  int64_t Map(const BudgetTarget& target);
  // Unmaps what is beyond that, behind Residency::SetBudget. Errors: as DeviceArena::Cut.
  absl::Status Cut(const BudgetTarget& target);
  // Returns what is mapped now; 0 of a DEVICE that is not in slabs. One thread at a time, as Map.
  int64_t mapped_slab_bytes() const { return arena_->slab_bytes() ? arena_->mapped_bytes() : 0; }
  // Tells the server that only the first target.device_bytes of the arena are used, nothing pinned
  // or in flight behind them: what lies there is lost, and unmapped. Needed when the target is less
  // than the grant, which epochs that were not taken may have raised; blocks.
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

// What of `device_bytes` is for chunks where DEVICE is in slabs of slab_bytes, 0 if it is not.
int64_t DeviceBytesForChunks(int64_t device_bytes, int64_t apart_bytes, int64_t slab_bytes);

// How long a request may take for which the server reserves the sum of these sizes, which may be any
// numbers: a peer may have said them.
absl::Duration ReserveTimeout(std::initializer_list<int64_t> sizes_bytes);

}  // namespace gemini::client
