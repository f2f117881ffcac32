// SPDX-License-Identifier: Apache-2.0
#include "gemini/device_shortage.h"

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"

namespace gemini {

std::string DeviceShortage(const DeviceNeed& need, int64_t budget_bytes) {
  const int64_t missing_bytes = need.bytes() - budget_bytes;
  return absl::StrCat(
      missing_bytes > 0 ? absl::StrCat("DEVICE is ", FormatByteSize(missing_bytes), " too small: ")
                        : "DEVICE is too small, for pinned chunks split its room: ",
      need.who, " needs ", FormatByteSize(need.chunk_bytes), " of chunks beside ",
      FormatByteSize(need.non_model_bytes), " of activations and temporaries, ",
      FormatByteSize(need.bytes()), " (", need.bytes(), " bytes) together; the budget is ",
      FormatByteSize(budget_bytes));
}

absl::Status DeviceTooSmall(const DeviceNeed& need, int64_t budget_bytes) {
  const std::string least = need.bytes() > budget_bytes
                                ? absl::StrCat(" to at least ", FormatByteSizeUp(need.bytes()))
                                : std::string();
  return absl::ResourceExhaustedError(absl::StrCat(DeviceShortage(need, budget_bytes),
                                                   ": raise --device-memory", least,
                                                   ", or lower --batch or --sequence"));
}

}  // namespace gemini
