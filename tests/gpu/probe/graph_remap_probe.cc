// SPDX-License-Identifier: Apache-2.0
// Whether a captured graph, replayed, works on memory that was mapped at its addresses after the
// capture: kernels, memsets and copies apart.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr uint32_t kBefore = 0x01010101;
constexpr uint32_t kWritten = 0x02020202;

// Enqueues what makes all `num_words` of `to` kWritten where those of `from` are.
using Work = std::function<cudaError_t(uint32_t* to, const uint32_t* from, int64_t num_words,
                                       cudaStream_t stream)>;

// Ends the process: after a fault nothing can be given back.
[[noreturn]] void AskOf(absl::string_view node, const Work& enqueue) {
  UseDevice();
  const int64_t size_bytes = GranularityBytes();
  const CUmemGenericAllocationHandle first = CreateDeviceMemory(size_bytes);
  const CUmemGenericAllocationHandle second = CreateDeviceMemory(size_bytes);
  cudaStream_t stream = nullptr;
  GEMINI_NEED(::cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  VmmMapping mapping(first, size_bytes);
  uint32_t* const to = mapping.words();
  const int64_t num_words = mapping.num_words() / 2;
  uint32_t* const from = to + num_words;
  // A kernel's first launch loads it, which a capture may refuse.
  GEMINI_NEED(FillWords(to, mapping.num_words(), kBefore, stream));
  GEMINI_NEED(::cudaStreamSynchronize(stream));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  GEMINI_NEED(::cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  GEMINI_NEED(enqueue(to, from, num_words, stream));
  GEMINI_NEED(::cudaStreamEndCapture(stream, &graph));
  GEMINI_NEED(::cudaGraphInstantiate(&executable, graph, 0));

  mapping.Replace(second);
  GEMINI_NEED(FillWords(to, num_words, kBefore, stream));
  GEMINI_NEED(FillWords(from, num_words, kWritten, stream));
  GEMINI_NEED(::cudaStreamSynchronize(stream));
  const cudaError_t launched = ::cudaGraphLaunch(executable, stream);
  const cudaError_t ended = ::cudaStreamSynchronize(stream);
  nlohmann::json answer = {{"cudaGraphLaunch", NameOf(launched)},
                           {"cudaStreamSynchronize", NameOf(ended)}};
  if (launched == cudaSuccess && ended == cudaSuccess) {
    answer["fraction_written_of_the_memory_mapped_since"] = FractionOf(to, num_words, kWritten);
    mapping.Replace(first);
    answer["fraction_left_alone_of_the_memory_at_the_capture"] = FractionOf(to, num_words, kBefore);
  }
  Answer(absl::StrCat("replaying a captured ", node, " where other memory is mapped since"),
         answer);
  ::_exit(0);
}

int Main() {
  NeedGpu();
  AskInAProcess("a kernel in a graph", [] {
    AskOf("kernel", [](uint32_t* to, const uint32_t*, int64_t num_words, cudaStream_t stream) {
      return FillWords(to, num_words, kWritten, stream);
    });
  });
  AskInAProcess("a memset in a graph", [] {
    AskOf("memset", [](uint32_t* to, const uint32_t*, int64_t num_words, cudaStream_t stream) {
      return ::cudaMemsetAsync(to, kWritten & 0xff, static_cast<size_t>(num_words) * 4, stream);
    });
  });
  AskInAProcess("a copy in a graph", [] {
    AskOf("copy", [](uint32_t* to, const uint32_t* from, int64_t num_words, cudaStream_t stream) {
      return ::cudaMemcpyAsync(to, from, static_cast<size_t>(num_words) * 4,
                               cudaMemcpyDeviceToDevice, stream);
    });
  });
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
