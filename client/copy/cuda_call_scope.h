// SPDX-License-Identifier: Apache-2.0
// For calls of the CUDA runtime from a thread that may belong to somebody else: makes a device the
// calling thread's until the end, and gives back the context that it had, or none. A thread that
// never chose a device would make a context on the first GPU with its first call. Meanwhile calls
// do not break the capture of a graph in another thread.
#pragma once
#include <cuda_runtime_api.h>

#include "gemini/system/cuda_driver.h"

namespace gemini::client {

class CudaCallScope {
 public:
  // `driver` outlives this; `ordinal`: as the CUDA runtime counts devices. Not checked: the calls
  // that follow fail.
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
