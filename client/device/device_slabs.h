// SPDX-License-Identifier: Apache-2.0
// Defines the interface to a lease's DEVICE memory on a GPU, which consists of slabs. The server
// exports them; where it cannot, this process allocates them. They are mapped one after another in
// an address range that is reserved once.
// Thread: one at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace gemini::client {

// The slabs that a lease may get.
struct DeviceSlabsOffer {
  int64_t slab_bytes = 0;  // Above 0.
  int64_t num_slabs = 0;   // Above 0; the most there will be.
  std::string gpu_uuid;    // The GPU's UUID, as nvidia-smi writes it without the prefix.
  // Whether they are allocations of this process, because none can be shared. Descriptors then only
  // stand for them.
  bool is_counted = false;
};

class DeviceSlabs {
 public:
  virtual ~DeviceSlabs() = default;

  // Maps the slab after those that are mapped. The caller keeps the descriptor and must close it,
  // because the slab's memory is not freed before. RESOURCE_EXHAUSTED: all addresses are in use, or
  // the GPU has no more. Other errors are the driver's refusal; nothing is mapped then.
  virtual absl::Status Map(int fd) = 0;
  // Unmaps all but the first `num_slabs`. No pending work of the GPU may use them, because CUDA
  // does not wait for that. On an error those that could not be unmapped stay mapped.
  virtual absl::Status Keep(int64_t num_slabs) = 0;

  virtual std::byte* data() const = 0;  // Any thread.
  virtual int64_t num_mapped() const = 0;
};

}  // namespace gemini::client
