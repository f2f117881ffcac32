// SPDX-License-Identifier: Apache-2.0
// Maps the memory of one space: its HOST slots, and the two segments that client and server share.
// The destructor unmaps it.
// Thread: any, once open. Units: bytes; a HOST slot holds chunk_bytes.
// Source: what the server sends at OpenSpace (gemini/wire.fbs). Sizes are checked before mapping,
//         so that no access past an end can raise SIGBUS.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemini/ids.h"
#include "gemini/shm/space_shm.h"
#include "gemini/state_format.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/unique_fd.h"

namespace gemini::client {

struct SpaceShape {
  int64_t chunk_bytes = 0;
  int64_t num_bundles = 0;
  int64_t host_slots = 0;
  int64_t nvme_slots = 0;
  int64_t device_slots = 0;    // Slots of the session's arena, which all its spaces share.
  int64_t slots_per_slab = 0;  // The last slab may hold fewer.
  int64_t num_tensors = 0;     // Of its intents.
  StateFormat format = {};     // Of its trainable bundles.
  // Whether the home of their optimizer states is NVME: they are in HOST only around an update.
  bool states_on_nvme = false;

  int64_t payload_bytes() const { return PayloadBytes(format, chunk_bytes); }
};

class SpaceMemory {
 public:
  // Maps the segments and all slabs; the descriptors may be closed afterwards. INVALID_ARGUMENT: a
  // memfd is smaller than its contents, or there are too few slabs.
  static absl::StatusOr<SpaceMemory> Map(const SpaceShape& shape, int client_segment,
                                         int server_segment, absl::Span<const UniqueFd> slabs);

  const SpaceShape& shape() const { return shape_; }
  // Returns the slot's first byte. The slots of a slab are adjacent, in the order of their ids.
  // Each slab begins where huge pages do, so that there may be addresses without memory before it.
  std::byte* slot_address(SlotId slot) const {
    const int64_t slab = slot.value() / shape_.slots_per_slab;
    const int64_t of_slab = slot.value() % shape_.slots_per_slab;
    return slots_.data() + slab * slab_stride_ + of_slab * shape_.chunk_bytes;
  }

  ClientSegmentHeaderShm* header() const { return At<ClientSegmentHeaderShm>(0); }
  IoEntryShm* ring() const { return At<IoEntryShm>(layout_.ring_offset); }
  std::atomic<uint64_t>* residency_words() const {
    return At<std::atomic<uint64_t>>(layout_.residency_offset);
  }
  std::atomic<uint64_t>* commit_words() const {
    return At<std::atomic<uint64_t>>(layout_.commit_offset);
  }
  CommitRecordShm* records() const { return At<CommitRecordShm>(layout_.record_offset); }
  IntentShm* intents() const { return At<IntentShm>(layout_.intent_offset); }
  const ClientSegmentLayout& layout() const { return layout_; }
  const ServerSegmentShm* server_segment() const {
    return reinterpret_cast<const ServerSegmentShm*>(server_segment_.data());
  }

 private:
  explicit SpaceMemory(const SpaceShape& shape)
      : shape_(shape), layout_(shape.num_bundles, shape.num_tensors) {}
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(client_segment_.data() + offset);
  }

  SpaceShape shape_;
  ClientSegmentLayout layout_;
  MappedMemory client_segment_;
  MappedMemory server_segment_;
  MappedMemory slots_;
  int64_t slab_stride_ = 0;  // From the first byte of a slab to that of the next.
};

}  // namespace gemini::client
