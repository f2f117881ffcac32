// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_budget.h"

#include "gemini/system/check.h"

namespace gemini::client {
namespace {

void RaiseTo(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

bool DeviceBudget::TryCharge(Use use, int64_t size_bytes) {
  GEMINI_CHECK(size_bytes >= 0);
  int64_t used = used_.load(std::memory_order_relaxed);
  do {
    // Written so that a size near the type's end does not overflow.
    if (size_bytes > budget_bytes() - used) return false;
  } while (!used_.compare_exchange_weak(used, used + size_bytes, std::memory_order_relaxed));
  RaiseTo(peak_, used + size_bytes);
  if (use == Use::kNonModel) {
    const int64_t non_model = non_model_.fetch_add(size_bytes, std::memory_order_relaxed);
    RaiseTo(non_model_peak_, non_model + size_bytes);
    RaiseTo(interval_peak_, non_model + size_bytes);
  }
  return true;
}

void DeviceBudget::Release(Use use, int64_t size_bytes) {
  GEMINI_CHECK(size_bytes >= 0);
  if (use == Use::kNonModel) {
    GEMINI_CHECK(non_model_.fetch_sub(size_bytes, std::memory_order_relaxed) >= size_bytes);
  }
  GEMINI_CHECK(used_.fetch_sub(size_bytes, std::memory_order_relaxed) >= size_bytes);
}

int64_t DeviceBudget::TakePeak() {
  return interval_peak_.exchange(non_model_bytes(), std::memory_order_relaxed);
}

void DeviceBudget::ResetPeaks() {
  peak_.store(used_bytes(), std::memory_order_relaxed);
  non_model_peak_.store(non_model_bytes(), std::memory_order_relaxed);
}

}  // namespace gemini::client
