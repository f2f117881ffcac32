// SPDX-License-Identifier: Apache-2.0
#include "client/copy/cuda_call_scope.h"

namespace gemini::client {

CudaCallScope::CudaCallScope(const CudaDriver& driver, int ordinal) : driver_(driver) {
  driver_.CtxGetCurrent(&before_);
  ::cudaSetDevice(ordinal);
  ::cudaThreadExchangeStreamCaptureMode(&mode_);
}

CudaCallScope::~CudaCallScope() {
  ::cudaThreadExchangeStreamCaptureMode(&mode_);
  driver_.CtxSetCurrent(before_);
}

}  // namespace gemini::client
