// SPDX-License-Identifier: Apache-2.0
// An ExchangeDevice of threads and host memory, for fake_nccl.h. A stream is a thread that runs
// what is enqueued, in order. Operators are what the calling thread does, so they wait by blocking.
// Where a test's memory is, the test says.
#pragma once
#include <functional>
#include <memory>

#include "trainer/parallel/exchange_device.h"

namespace gemini::trainer {

// What a stream's handle points to.
class HostStreamQueue {
 public:
  virtual ~HostStreamQueue() = default;
  virtual void Enqueue(std::function<void()> work) = 0;
};

enum class CallersMemory : uint8_t { kOnDevice, kOnHost, kMixed };

// `callers` says where memory counts as being that the device did not make; kMixed: by its address.
std::shared_ptr<ExchangeDevice> MakeHostExchange(CallersMemory callers);

// Whether a library in NCCL's place may touch it: it is of the device's making, or may count as
// such.
bool MayExchange(CallersMemory callers, const void* bytes);
// Whether it is the handle of a stream that has not come to its end.
bool IsStream(const void* handle);

}  // namespace gemini::trainer
