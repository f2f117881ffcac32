// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/driver.h"
#include "tests/gpu/probe/nvml.h"

namespace gemini::probe {
namespace {

[[noreturn]] void Fail(absl::string_view what, absl::string_view why) {
  std::cerr << ::program_invocation_short_name << ": " << what << ": " << why << std::endl;
  ::_exit(1);
}

// Returns the exit status of the process that asks.
int AskOfTheMachine() {
  int num_gpus = 0;
  const cudaError_t counted = ::cudaGetDeviceCount(&num_gpus);
  if (counted != cudaSuccess || num_gpus == 0) {
    std::cout << "skipped: no GPU to be used, cudaGetDeviceCount: " << NameOf(counted) << std::endl;
    return kSkipped;
  }
  cudaDeviceProp gpu = {};
  int cuda_version = 0;
  utsname kernel = {};
  GEMINI_NEED(::cudaGetDeviceProperties(&gpu, 0));
  GEMINI_NEED(::cudaDriverGetVersion(&cuda_version));
  NeedSystem(::uname(&kernel) == 0, "uname");
  Answer("the machine", {{"gpu", gpu.name},
                         {"gpu_bytes", gpu.totalGlobalMem},
                         {"driver", DriverRelease()},
                         {"cuda_of_the_driver", cuda_version},
                         {"kernel", kernel.release}});
  return 0;
}

}  // namespace

void NeedGpu() {
  NeedSystem(::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1) == 0, "setenv");
  // In a process of its own: one that has called cuInit can no longer fork children that use CUDA.
  const pid_t child = ::fork();
  NeedSystem(child >= 0, "fork");
  if (child == 0) ::_exit(AskOfTheMachine());
  int status = 0;
  NeedSystem(::waitpid(child, &status, 0) == child, "waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) ::_exit(kSkipped);
  NeedTrue(WIFEXITED(status) && WEXITSTATUS(status) == 0, "asking which machine this is");
}

void Answer(absl::string_view question, const nlohmann::json& answer) {
  std::cout << nlohmann::json{{"probe", ::program_invocation_short_name},
                              {"question", std::string(question)},
                              {"answer", answer}}
            << std::endl;
}

std::string NameOf(CUresult result) {
  const char* name = nullptr;
  return Driver::Get().GetErrorName(result, &name) == CUDA_SUCCESS
             ? name
             : absl::StrCat("CUresult ", static_cast<int>(result));
}

std::string NameOf(cudaError_t result) { return ::cudaGetErrorName(result); }

void Need(CUresult result, absl::string_view call) {
  if (result != CUDA_SUCCESS) Fail(call, NameOf(result));
}

void Need(cudaError_t result, absl::string_view call) {
  if (result != cudaSuccess) Fail(call, NameOf(result));
}

void Need(const absl::Status& result, absl::string_view call) {
  if (!result.ok()) Fail(call, result.message());
}

void NeedSystem(bool succeeded, absl::string_view call) {
  if (!succeeded) Fail(call, std::strerror(errno));
}

void NeedTrue(bool holds, absl::string_view what) {
  if (!holds) Fail(what, "it does not hold");
}

}  // namespace gemini::probe
