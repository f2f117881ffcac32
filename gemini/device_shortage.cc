// SPDX-License-Identifier: Apache-2.0
#include "gemini/device_shortage.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/byte_size.h"

namespace gemini {
namespace {

constexpr absl::string_view kLeastDevice = "gemini.least_device_bytes";

}  // namespace

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
  const bool more_would_do = need.bytes() > budget_bytes;
  const std::string least =
      more_would_do ? absl::StrCat(" to at least ", FormatByteSizeUp(need.bytes())) : std::string();
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat(DeviceShortage(need, budget_bytes), ": raise --device-memory", least,
                   ", or lower --batch or --sequence"));
  if (more_would_do) SetLeastDeviceBytes(need.bytes(), status);
  return status;
}

std::optional<int64_t> LeastDeviceBytes(const absl::Status& status) {
  const auto text = status.GetPayload(kLeastDevice);
  int64_t size_bytes = 0;
  if (!text.has_value() || !absl::SimpleAtoi(std::string(*text), &size_bytes)) return std::nullopt;
  return size_bytes;
}

void SetLeastDeviceBytes(int64_t size_bytes, absl::Status& status) {
  status.SetPayload(kLeastDevice, absl::Cord(absl::StrCat(size_bytes)));
}

}  // namespace gemini
