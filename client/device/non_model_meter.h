// SPDX-License-Identifier: Apache-2.0
// The seam for how much non-model data lay on DEVICE: exact by the counting allocator
// (DeviceBudget), or an allocator's statistics.
// Thread: any. Units: bytes.
#pragma once
#include <cstdint>

namespace gemini::client {

class NonModelMeter {
 public:
  virtual ~NonModelMeter() = default;
  // Returns the largest sum since the last call, and begins anew from what is there now.
  virtual int64_t TakePeak() = 0;
};

}  // namespace gemini::client
