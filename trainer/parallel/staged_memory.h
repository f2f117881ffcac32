// SPDX-License-Identifier: Apache-2.0
// Provides memory of the device for what callers of an exchange have in host memory, and memory of
// the host between the two, which the device copies while the caller goes on.
// Thread: one takes it; any may give it back.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/parallel/exchange_device.h"

namespace gemini::trainer {

struct StagedMemory {
  std::shared_ptr<ExchangeMemory> host;
  std::shared_ptr<ExchangeMemory> device;
  int64_t size_bytes = 0;
  // Behind this the device has no more to do with it. Null: nothing was enqueued.
  std::shared_ptr<StreamPoint> point;
  // Whether somebody has yet to read or write it on the host, or to enqueue something.
  std::atomic<bool> is_taken{true};
};

class StagedMemories {
 public:
  explicit StagedMemories(ExchangeDevice& device) : device_(device) {}

  // Returns memory of at least so many bytes that nobody uses. It makes more where there is none,
  // which may wait for the device. The taker clears `is_taken`, with release order.
  // RESOURCE_EXHAUSTED: there is no room.
  absl::StatusOr<std::shared_ptr<StagedMemory>> Take(int64_t size_bytes);

 private:
  ExchangeDevice& device_;
  std::vector<std::shared_ptr<StagedMemory>> all_;
};

}  // namespace gemini::trainer
