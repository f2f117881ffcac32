// SPDX-License-Identifier: Apache-2.0
// A kernel that keeps the GPU busy, on a stream of its own that waits for no other. What it takes
// is kept until the program ends.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/time/time.h"

namespace gemini::probe {

class SpinningKernel {
 public:
  SpinningKernel();  // Needs a current context.
  SpinningKernel(const SpinningKernel&) = delete;
  SpinningKernel& operator=(const SpinningKernel&) = delete;

  // Waits for the end of the one before, begins one, and returns when it runs.
  void Begin(absl::Duration time);

 private:
  cudaStream_t stream_ = nullptr;
  uint32_t* started_ = nullptr;  // Of the host.
};

}  // namespace gemini::probe
