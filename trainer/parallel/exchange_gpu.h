// SPDX-License-Identifier: Apache-2.0
// Implements ExchangeDevice on a GPU of this process.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "trainer/parallel/exchange_device.h"

namespace gemini::trainer {

// `gpu` is its number, as the CUDA runtime counts those of this process. Operators run on Torch's
// current stream of the calling thread. NOT_FOUND: there is no such GPU. UNIMPLEMENTED: this build
// has no CUDA.
absl::StatusOr<std::unique_ptr<ExchangeDevice>> MakeGpuExchange(int gpu);

}  // namespace gemini::trainer
