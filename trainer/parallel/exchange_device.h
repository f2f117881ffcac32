// SPDX-License-Identifier: Apache-2.0
// Declares the interface between CommunicatorNccl and the GPU: streams, events between them and the
// stream on which operators run, memory on the GPU for what callers have in host memory, and the
// sum that is a left fold. The GPU's is exchange_gpu.h; tests have one of host memory and threads
// (tests/trainer/parallel/exchange_device_host.h).
// Operators: those of the calling thread, on its current stream. They never wait on the host.
// Thread: any may call each.
// Errors: behind one of a stream the GPU is lost to this process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// A moment in a stream: what was enqueued before it.
class StreamPoint {
 public:
  virtual ~StreamPoint() = default;
  // Lets the operators that the calling thread enqueues from now on wait for it.
  virtual absl::Status MakeOperatorsWait() = 0;
  virtual absl::StatusOr<bool> Reached() = 0;
};

// Memory that outlives whoever asked for it as long as anybody has it.
class ExchangeMemory {
 public:
  virtual ~ExchangeMemory() = default;
  virtual std::byte* bytes() const = 0;
};

class ExchangeStream {
 public:
  virtual ~ExchangeStream() = default;
  // Returns what NCCL is given, a cudaStream_t.
  virtual void* handle() const = 0;
  // Lets what is enqueued from now on wait for the operators that the calling thread has enqueued.
  virtual absl::Status AwaitOperators() = 0;
  virtual absl::StatusOr<std::shared_ptr<StreamPoint>> Mark() = 0;
  // Enqueues a copy. Memory of the host must be of MakeHostMemory's, or the caller would wait.
  virtual absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes) = 0;
  // Enqueues FoldSum (exact_sum.h) in memory of the device: the same bits.
  virtual absl::Status Fold(SumType type, const std::byte* parts, int64_t num_parts,
                            int64_t elements, std::byte* sum) = 0;
};

class ExchangeDevice {
 public:
  virtual ~ExchangeDevice() = default;
  // Makes the device that of the calling thread, as NCCL wants it.
  virtual absl::Status Use() = 0;
  virtual absl::StatusOr<std::unique_ptr<ExchangeStream>> MakeStream() = 0;
  // May wait for the device, so it is called before anything of an exchange is enqueued.
  // RESOURCE_EXHAUSTED: there is no room.
  virtual absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(int64_t size_bytes) = 0;
  // Makes host memory that the device copies without the caller's waiting.
  virtual absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeHostMemory(int64_t size_bytes) = 0;
  // Whether NCCL can exchange what is there.
  virtual bool IsDeviceMemory(const void* bytes) = 0;
};

}  // namespace gemini::trainer
