// SPDX-License-Identifier: Apache-2.0
// Whether a captured graph, replayed, works on memory that was mapped at its addresses after the capture.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr uint32_t kFirst = 1;
constexpr uint32_t kSecond = 2;

int Main() {
  NeedGpu();
  UseDevice();
  const int64_t size_bytes = GranularityBytes(DeviceMemory());
  const CUmemGenericAllocationHandle first = CreateDeviceMemory(size_bytes);
  const CUmemGenericAllocationHandle second = CreateDeviceMemory(size_bytes);
  cudaStream_t stream = nullptr;
  GEMINI_NEED(::cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  VmmMapping mapping(first, size_bytes);

  // The kernels of a captured Fill write wherever its addresses lead at the replay.
  GEMINI_NEED(::cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  FillWords(mapping.words(), mapping.num_words(), kSecond, stream);
  cudaGraph_t graph = nullptr;
  GEMINI_NEED(::cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  GEMINI_NEED(::cudaGraphInstantiate(&executable, graph, 0));

  FillWords(mapping.words(), mapping.num_words(), kFirst, stream);
  GEMINI_NEED(::cudaStreamSynchronize(stream));
  mapping.Replace(second);
  FillWords(mapping.words(), mapping.num_words(), kFirst, stream);
  GEMINI_NEED(::cudaGraphLaunch(executable, stream));
  GEMINI_NEED(::cudaStreamSynchronize(stream));
  Answer("fraction of the memory mapped since that a replayed graph wrote",
         static_cast<double>(Count(mapping, kSecond)) / static_cast<double>(mapping.num_words()));
  mapping.Replace(first);
  Answer("fraction of the memory mapped at the capture that it left alone",
         static_cast<double>(Count(mapping, kFirst)) / static_cast<double>(mapping.num_words()));

  GEMINI_NEED(::cudaGraphExecDestroy(executable));
  GEMINI_NEED(::cudaGraphDestroy(graph));
  GEMINI_NEED(::cudaStreamDestroy(stream));
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
