// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/staged_memory.h"

#include <algorithm>
#include <bit>

#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

// What ranks agree on is smaller.
constexpr int64_t kLeastBytes = 64 * kKiB;

}  // namespace

absl::StatusOr<std::shared_ptr<StagedMemory>> StagedMemories::Take(int64_t size_bytes) {
  std::shared_ptr<StagedMemory> smallest;
  for (const std::shared_ptr<StagedMemory>& one : all_) {
    if (one->size_bytes < size_bytes || one->is_taken.load(std::memory_order_acquire)) continue;
    if (one->point != nullptr) {
      GEMINI_ASSIGN_OR_RETURN(const bool reached, one->point->Reached());
      if (!reached) continue;
    }
    if (smallest == nullptr || one->size_bytes < smallest->size_bytes) smallest = one;
  }
  if (smallest == nullptr) {
    auto made = std::make_shared<StagedMemory>();
    made->size_bytes = static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(std::max(size_bytes, kLeastBytes))));
    GEMINI_ASSIGN_OR_RETURN(made->host, device_.MakeHostMemory(made->size_bytes));
    GEMINI_ASSIGN_OR_RETURN(made->device, device_.MakeDeviceMemory(made->size_bytes));
    all_.push_back(made);
    return made;
  }
  smallest->point = nullptr;
  smallest->is_taken.store(true, std::memory_order_relaxed);
  return smallest;
}

}  // namespace gemini::trainer
