// SPDX-License-Identifier: Apache-2.0
#include "client/host/edited_parameter.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "client/kernels/element_values.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

bool HasMaster(const ChunkStore& store, ChunkId chunk) {
  return KindOf(chunk) == ChunkKind::kParam && store.format().element != ElementType::kFp32 &&
         store.HasPayload(ChunkOf(BundleOf(chunk), ChunkKind::kMaster));
}

bool IsOnDeviceAlone(const ChunkStore& store, BundleId bundle) {
  for (const ChunkKind kind : KindsOfValue(store.format(), ChunkKind::kParam)) {
    const std::optional<ChunkSlot> place = store.CommittedPlace(ChunkOf(bundle, kind));
    if (place && place->tier == Tier::kDevice) return true;
  }
  return false;
}

absl::Status CommitEdited(ChunkStore& store, ChunkId chunk, HostChunk edited) {
  const BundleId bundle = BundleOf(chunk);
  const ElementType element = store.format().element;
  ValueChunks old = {.format = store.format(), .chunk_bytes = store.chunk_bytes()};
  ValueChunks fresh = old;
  ValueChunks shown = old;
  shown.chunks.push_back(edited.data());
  std::vector<HostChunk> held;
  std::vector<std::pair<ChunkKind, HostChunk>> committed;
  for (const ChunkKind kind : KindsOfValue(store.format(), ChunkKind::kParam)) {
    GEMINI_ASSIGN_OR_RETURN(HostChunk before, store.Acquire(ChunkOf(bundle, kind)));
    old.chunks.push_back(before.data());
    held.push_back(std::move(before));
    if (kind == ChunkKind::kParam) {
      fresh.chunks.push_back(edited.data());
      committed.emplace_back(kind, std::move(edited));
      continue;
    }
    GEMINI_ASSIGN_OR_RETURN(HostChunk after, store.AcquireSpare());
    fresh.chunks.push_back(after.data());
    committed.emplace_back(kind, std::move(after));
  }
  constexpr int64_t kBlockElements = 1024;  // A payload is a multiple of a page.
  std::array<float, kBlockElements> values, numbers;
  const auto* const before = reinterpret_cast<const uint16_t*>(old.chunks[0]);
  const auto* const after = reinterpret_cast<const uint16_t*>(shown.chunks[0]);
  const int64_t count = store.memory().shape().payload_bytes() / ElementBytes(element);
  for (int64_t first = 0; first < count; first += kBlockElements) {
    LoadValues(old, first, absl::MakeSpan(values));
    LoadValues(shown, first, absl::MakeSpan(numbers));
    for (int64_t i = 0; i < kBlockElements; ++i) {
      if (before[first + i] != after[first + i]) values[i] = numbers[i];
    }
    StoreValues(fresh, first, values);
  }
  held.clear();  // So that the old slots are free with the commit.
  return store.Commit(bundle, store.CommittedStep(bundle), absl::MakeSpan(committed));
}

}  // namespace gemini::client
