// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "trainer/parallel/exchange_gpu.h"

namespace gemini::trainer {

absl::StatusOr<std::unique_ptr<ExchangeDevice>> MakeGpuExchange(int gpu) {
  return absl::UnimplementedError(absl::StrCat(
      "cuda:", gpu, ": this build has no CUDA: configure it with -DGEMINI_WITH_CUDA=ON"));
}

}  // namespace gemini::trainer
