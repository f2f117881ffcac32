// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/spinning_kernel.h"

#include <atomic>

#include "absl/time/clock.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/timing.h"

namespace gemini::probe {

SpinningKernel::SpinningKernel() {
  void* pinned = nullptr;
  GEMINI_NEED(::cudaMallocHost(&pinned, sizeof(*started_)));
  started_ = static_cast<uint32_t*>(pinned);
  GEMINI_NEED(::cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

void SpinningKernel::Begin(absl::Duration time) {
  GEMINI_NEED(::cudaStreamSynchronize(stream_));
  std::atomic_ref<uint32_t> started(*started_);
  started = 0;
  GEMINI_NEED(Spin(absl::ToInt64Nanoseconds(time), started_, stream_));
  const absl::Duration until_started =
      TimeUntil(absl::Now(), absl::Seconds(10), [&started] { return started != 0; });
  NeedTrue(until_started != absl::InfiniteDuration(), "a kernel begins within 10 s");
}

}  // namespace gemini::probe
