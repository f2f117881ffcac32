// SPDX-License-Identifier: Apache-2.0
// Keeps the DEVICE budget of a session: a charge for chunks or non-model data is refused if both
// together would exceed it.
// Thread: any; a charge is one compare-and-swap, never a system call.
// Units:  bytes.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace gemini::client {

// Shared with memory that outlives a session and is charged to it.
class DeviceBudget : public std::enable_shared_from_this<DeviceBudget> {
 public:
  enum class Use { kChunks, kNonModel };

  explicit DeviceBudget(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  DeviceBudget(const DeviceBudget&) = delete;
  DeviceBudget& operator=(const DeviceBudget&) = delete;

  // Charges `size_bytes` (>= 0) unless the sum would pass the budget; then it changes nothing and
  // returns false.
  bool TryCharge(Use use, int64_t size_bytes);
  // Gives back `size_bytes` that were charged.
  void Release(Use use, int64_t size_bytes);

  int64_t budget_bytes() const { return budget_bytes_.load(std::memory_order_relaxed); }
  // Sets the budget. What is used may exceed a smaller budget until it is released; nothing is
  // charged meanwhile.
  void SetBudget(int64_t budget_bytes) {
    budget_bytes_.store(budget_bytes, std::memory_order_relaxed);
  }
  int64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  int64_t non_model_bytes() const { return non_model_.load(std::memory_order_relaxed); }
  int64_t non_model_peak_bytes() const { return non_model_peak_.load(std::memory_order_relaxed); }
  // Returns the largest sum of non-model data since the last call, and starts anew from the present
  // sum.
  int64_t TakePeak();
  // Returns non-model data that is shown although the budget does not count it, such as what
  // operators take of a GPU.
  int64_t outside_bytes() const { return outside_.load(std::memory_order_relaxed); }
  void set_outside_bytes(int64_t bytes) { outside_.store(bytes, std::memory_order_relaxed); }
  // Starts new peaks from the present use.
  void ResetPeaks();

 private:
  std::atomic<int64_t> budget_bytes_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> non_model_{0};
  std::atomic<int64_t> non_model_peak_{0};
  std::atomic<int64_t> interval_peak_{0};  // For non-model data, since TakePeak.
  std::atomic<int64_t> outside_{0};
};

}  // namespace gemini::client
