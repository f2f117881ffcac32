// SPDX-License-Identifier: Apache-2.0
#include "gemini/byte_size.h"

#include <array>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gemini {
namespace {

struct Unit {
  absl::string_view name;
  int shift;
};
constexpr std::array<Unit, 5> kUnits = {Unit{"TiB", 40}, Unit{"GiB", 30}, Unit{"MiB", 20},
                                        Unit{"KiB", 10}, Unit{"B", 0}};

std::string Format(int64_t size_bytes, double (*round)(double)) {
  const double magnitude = std::fabs(static_cast<double>(size_bytes));
  for (const Unit& unit : kUnits) {
    // What would round to 1024.0 of the smaller unit is 1 of this one.
    const double least = std::ldexp(1.0, unit.shift) - std::ldexp(0.05, unit.shift - 10);
    if (magnitude < least && unit.shift > 0) continue;
    const double tenths = round(std::ldexp(static_cast<double>(size_bytes), -unit.shift) * 10);
    const bool whole = std::fmod(tenths, 10) == 0;
    return absl::StrFormat("%.*f %s", whole ? 0 : 1, tenths / 10, unit.name);
  }
  return "0 B";
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < trimmed.size() &&
         (absl::ascii_isdigit(trimmed[digits]) || trimmed[digits] == '.')) {
    ++digits;
  }
  const absl::string_view suffix = absl::StripLeadingAsciiWhitespace(trimmed.substr(digits));
  int shift = suffix.empty() ? 0 : -1;
  for (const Unit& unit : kUnits) {
    if (suffix == unit.name) shift = unit.shift;
  }
  double number = 0;
  if (shift < 0 || !absl::SimpleAtod(trimmed.substr(0, digits), &number)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text,
        "' is no size in bytes: write a number and B, KiB, MiB, GiB or TiB, e.g. 1.5GiB"));
  }
  const double bytes = std::ldexp(number, shift);
  if (!(bytes <= std::ldexp(1.0, 62))) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is above 2^62 bytes"));
  }
  return static_cast<int64_t>(std::llround(bytes));
}

std::string FormatByteSize(int64_t size_bytes) {
  return Format(size_bytes, [](double value) { return std::round(value); });
}

std::string FormatByteSizeUp(int64_t size_bytes) {
  return Format(size_bytes, [](double value) { return std::ceil(value); });
}

}  // namespace gemini
