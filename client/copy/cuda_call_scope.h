// SPDX-License-Identifier: Apache-2.0
// Prepares the calling thread, which may be a user's, for calls of the CUDA runtime. It makes a
// device current, and at its end restores the context that the thread had, or none. Without it, a
// thread that never chose a device would make a context on the first GPU with its first call. In
// this scope calls do not break the capture of a graph in another thread.
#pragma once
#include <cuda_runtime_api.h>

#include "gemini/system/cuda_driver.h"

namespace gemini::client {

class CudaCallScope {
 public:
  // `driver` outlives this; `ordinal` is as the CUDA runtime counts devices. It is not checked: the
  // calls that follow fail.
  CudaCallScope(const CudaDriver& driver, int ordinal);
  CudaCallScope(const CudaCallScope&) = delete;
  CudaCallScope& operator=(const CudaCallScope&) = delete;
  ~CudaCallScope();

 private:
  const CudaDriver& driver_;
  CUcontext before_ = nullptr;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace gemini::client
