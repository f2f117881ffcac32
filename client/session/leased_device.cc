// SPDX-License-Identifier: Apache-2.0
#include "client/session/leased_device.h"

#include <algorithm>
#include <utility>

#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

int64_t DeviceBytesForChunks(int64_t device_bytes, int64_t apart_bytes, int64_t slab_bytes) {
  if (slab_bytes == 0) return device_bytes;
  return std::max<int64_t>(0, device_bytes - apart_bytes) / slab_bytes * slab_bytes;
}

// The server reserves the memory before it answers: 0.2 s a GiB where measured, and forty times
// that beside ten compilers on two cores. A server that has died hangs up, so only for a stopped
// one this is long.
absl::Duration ReserveTimeout(std::initializer_list<int64_t> sizes_bytes) {
  absl::Duration timeout = Connection::kReplyTimeout + absl::Seconds(20);
  for (const int64_t size_bytes : sizes_bytes) timeout += absl::Seconds(10) * (size_bytes / kGiB);
  return timeout;
}

LeasedDevice::LeasedDevice(Connection& connection, CopyEngine& copies, MappedMemory segment,
                           std::unique_ptr<DeviceArena> arena, int64_t apart_bytes)
    : connection_(connection),
      copies_(copies),
      segment_(std::move(segment)),
      arena_(std::move(arena)),
      apart_bytes_(apart_bytes) {}

std::optional<BudgetTarget> LeasedDevice::TakeChange() {
  const auto& segment = *reinterpret_cast<const LeaseSegmentShm*>(segment_.data());
  uint64_t seen = seen_epoch_.load(std::memory_order_relaxed);
  if (segment.epoch.load(std::memory_order_relaxed) == seen) return std::nullopt;
  BudgetTarget target = ReadBudgetTarget(segment);
  // Another server may say what it likes.
  target.device_bytes = std::clamp<int64_t>(target.device_bytes, 0, arena_->size_bytes());
  // Of threads that look at the same time, one takes it.
  if (target.epoch == seen ||
      !seen_epoch_.compare_exchange_strong(seen, target.epoch, std::memory_order_relaxed)) {
    return std::nullopt;
  }
  return target;
}

int64_t LeasedDevice::ForChunks(int64_t device_bytes) const {
  return DeviceBytesForChunks(device_bytes, apart_bytes(), arena_->slab_bytes());
}

int64_t LeasedDevice::Map(const BudgetTarget& target) {
  const int64_t for_chunks = ForChunks(target.device_bytes);
  // What is mapped can be used, whatever the error: the budget then stays below what it might be.
  arena_->Grow(for_chunks).IgnoreError();
  return std::min(for_chunks, arena_->mapped_bytes());
}

absl::Status LeasedDevice::Cut(const BudgetTarget& target) {
  // Behind an error nobody knows what still uses the slabs.
  GEMINI_RETURN_IF_ERROR(copies_.status());
  return arena_->Cut(ForChunks(target.device_bytes));
}

absl::Status LeasedDevice::Acknowledge(const BudgetTarget& target) {
  GEMINI_RETURN_IF_ERROR(Cut(target));
  return connection_
      .Call(
          wire::Body::AckEpoch,
          [&target](flatbuffers::FlatBufferBuilder& builder) {
            return wire::CreateAckEpoch(builder, target.epoch, target.device_bytes).Union();
          },
          wire::Body::Done, ReserveTimeout({arena_->size_bytes()}))
      .status();
}

}  // namespace gemini::client
