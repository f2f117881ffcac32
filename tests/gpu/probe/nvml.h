// SPDX-License-Identifier: Apache-2.0
// What NVML says, which needs no context: device 0's memory counts what all processes have of it.
#pragma once
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace gemini::probe {

// End the program where there is no NVML, or where it fails.
int64_t UsedDeviceBytes();
int64_t FreeDeviceBytes();

double MiB(int64_t bytes);

// Waits up to 20 s until at most `bytes`, and a little, of the device are in use. Returns how long
// after `start` that was, and what was in use beyond `bytes` then: {"ms", "MiB_left"}.
nlohmann::json UntilUsedIsAtMost(absl::Time start, int64_t bytes);

// Such as "580.95.05", or why it is not known.
std::string DriverRelease();

}  // namespace gemini::probe
