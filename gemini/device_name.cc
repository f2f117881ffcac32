// SPDX-License-Identifier: Apache-2.0
#include "gemini/device_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gemini {

absl::StatusOr<std::optional<int>> ParseDeviceName(absl::string_view text) {
  if (text.empty() || text == "host" || text == "cpu") return std::optional<int>();
  int ordinal = 0;
  if (text == "cuda") return ordinal;
  absl::string_view number = text;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal) && ordinal >= 0) {
    return ordinal;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device '", text, "': cpu or host, or a GPU such as cuda:0"));
}

}  // namespace gemini
