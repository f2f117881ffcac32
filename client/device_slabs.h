// SPDX-License-Identifier: Apache-2.0
// The seam for a lease's DEVICE memory that is a GPU's: slabs that the server exported, mapped one behind the other at
// addresses reserved once.
// Thread: one at a time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace gemini::client {

class DeviceSlabs {
 public:
  virtual ~DeviceSlabs() = default;

  // Maps the exported slab behind those that are mapped. The descriptor stays the caller's, who closes it, or the memory
  // lives as long. RESOURCE_EXHAUSTED: all addresses are in use. Others: the driver's refusal; nothing is mapped then.
  virtual absl::Status Map(int fd) = 0;
  // Unmaps all but the first `num_slabs`. Nothing that the GPU has to do may still use them: CUDA does not wait for that.
  // On an error those that could not be unmapped stay.
  virtual absl::Status Keep(int64_t num_slabs) = 0;

  virtual std::byte* data() const = 0;  // Any thread.
  virtual int64_t num_mapped() const = 0;
};

}  // namespace gemini::client
