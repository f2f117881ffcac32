// SPDX-License-Identifier: Apache-2.0
// Composes what people are told when DEVICE is too small: one text and one advice, whoever notices
// it.
// Units:  bytes.
// Thread: any.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace gemini {

// What must be on DEVICE at one time.
struct DeviceNeed {
  std::string who;              // Needs it: "operator 7 of phase train".
  int64_t chunk_bytes = 0;      // Of chunks that it uses or that are pinned already,
  int64_t non_model_bytes = 0;  // and of activations and temporaries.
  int64_t bytes() const { return chunk_bytes + non_model_bytes; }
};

// Returns what happened, with the numbers: "DEVICE is 1 MiB too small: WHO needs ...".
std::string DeviceShortage(const DeviceNeed& need, int64_t budget_bytes);

// Returns RESOURCE_EXHAUSTED with that, and with the way out. A budget that holds the bytes is too
// small where pinned chunks split its room.
absl::Status DeviceTooSmall(const DeviceNeed& need, int64_t budget_bytes);

// Returns how large DEVICE must be at least, by a status that DeviceTooSmall made. Returns nothing
// for any other status, and where the budget holds the bytes.
std::optional<int64_t> LeastDeviceBytes(const absl::Status& status);
// Sets it in a status that is not OK, where an error is passed on with another message, or from
// another process.
void SetLeastDeviceBytes(int64_t size_bytes, absl::Status& status);

}  // namespace gemini
