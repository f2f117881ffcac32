// SPDX-License-Identifier: Apache-2.0
// What cudaGetDriverEntryPointByVersion does for functions that the driver has, and for those that
// it lacks.
#include <cuda_runtime_api.h>

#include "absl/strings/string_view.h"
#include "tests/gpu/probe/probe.h"

namespace gemini::probe {
namespace {

constexpr unsigned kVersionOfMemCreate = 10020;

void AskFor(absl::string_view question, const char* name, unsigned version) {
  int elsewhere = 0;
  void* function = &elsewhere;
  constexpr auto kUntouched = static_cast<cudaDriverEntryPointQueryResult>(3);
  cudaDriverEntryPointQueryResult status = kUntouched;
  const cudaError_t result =
      ::cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &status);
  const bool is_kept = function == &elsewhere;
  nlohmann::json answer = {{"returns", NameOf(result)},
                           {"function", is_kept    ? "untouched"
                                        : function ? "found"
                                                   : "null"},
                           {"status", static_cast<int>(status)},
                           {"last_error", NameOf(::cudaGetLastError())}};
  if (status == kUntouched) answer["status"] = "untouched";
  Answer(question, answer);
}

int Main() {
  NeedGpu();
  int driver_version = 0;
  GEMINI_NEED(::cudaDriverGetVersion(&driver_version));
  AskFor("cuMemCreate of its first version", "cuMemCreate", kVersionOfMemCreate);
  AskFor("cuMemCreate of a version before its first", "cuMemCreate", kVersionOfMemCreate - 1000);
  AskFor("cuMemCreate of a version after the driver's", "cuMemCreate",
         static_cast<unsigned>(driver_version) + 1000);
  AskFor("a function that no driver has", "cuGeminiAsksForThis", kVersionOfMemCreate);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
