// SPDX-License-Identifier: Apache-2.0
// The seam for a lease's DEVICE memory that is a GPU's: slabs that the server exported (or that are
// this process's own, where it cannot), mapped one behind the other at addresses reserved once.
// Thread: one at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace gemini::client {

// Slabs that a lease may get.
struct DeviceSlabsOffer {
  int64_t slab_bytes = 0;  // Above 0.
  int64_t num_slabs = 0;   // Above 0: there are never more.
  std::string gpu_uuid;    // Whose memory they are, as nvidia-smi writes it without the prefix.
  // Whether they are allocations of this process, because none can be shared: descriptors then only
  // stand for them.
  bool is_counted = false;
};

class DeviceSlabs {
 public:
  virtual ~DeviceSlabs() = default;

  // Maps the slab behind those that are mapped. The descriptor stays the caller's, who closes it,
  // or the memory lives as long. RESOURCE_EXHAUSTED: all addresses are in use, or the GPU has no
  // more. Others: the driver's refusal; nothing is mapped then.
  virtual absl::Status Map(int fd) = 0;
  // Unmaps all but the first `num_slabs`. Nothing that the GPU has to do may still use them: CUDA
  // does not wait for that. On an error those that could not be unmapped stay.
  virtual absl::Status Keep(int64_t num_slabs) = 0;

  virtual std::byte* data() const = 0;  // Any thread.
  virtual int64_t num_mapped() const = 0;
};

}  // namespace gemini::client
