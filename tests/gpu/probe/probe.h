// SPDX-License-Identifier: Apache-2.0
// What the probes share. A probe asks this machine's CUDA driver how it behaves where its documents
// are silent, and prints one JSON object for each answer: {"probe", "question", "answer"}.
// docs/cuda.md says what was found.
// Exit status: 0, all was asked, whatever the answers; 77 (kSkipped), nothing was, with the reason
// on stdout; 1, a call failed that no question was about.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace gemini::probe {

inline constexpr int kSkipped = 77;

// Answers which GPU, driver and kernel there are, or ends the program with kSkipped where there is
// no GPU. Device 0 is NVML's, too, from here on. Leaves CUDA untouched in this process, which may
// fork.
void NeedGpu();

void Answer(absl::string_view question, const nlohmann::json& answer);

std::string NameOf(CUresult result);
std::string NameOf(cudaError_t result);

// End the program with what failed, unless it succeeded.
void Need(CUresult result, absl::string_view call);
void Need(cudaError_t result, absl::string_view call);
void Need(const absl::Status& result, absl::string_view call);
void NeedSystem(bool succeeded, absl::string_view call);  // Of a call that sets errno.
void NeedTrue(bool holds, absl::string_view what);
#define GEMINI_NEED(call) ::gemini::probe::Need(call, #call)

}  // namespace gemini::probe
