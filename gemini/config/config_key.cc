// SPDX-License-Identifier: Apache-2.0
#include "gemini/config/config_key.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"

namespace gemini {
namespace {

using Form = ConfigKey::Form;

absl::Status Wants(absl::string_view wanted, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("wants ", wanted, ", not '", absl::CHexEscape(text), "'"));
}

ConfigKey MakeKey(KeyWords words, Form form, std::string wants) {
  return {{words}, form, std::move(wants)};
}

absl::StatusOr<std::string> AbsolutePath(absl::string_view text) {
  if (text.empty()) return std::string();
  if (text.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError("a path holds a zero byte");
  }
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(std::string(text), error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("no absolute path: ", error.message()));
  }
  std::string normal = path.lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

ConfigKey RealKey(KeyWords words, double& value, double min, double max, std::string wants) {
  ConfigKey key = MakeKey(words, Form::kNumber, std::move(wants));
  key.set = [&value, min, max, wants = key.wants](absl::string_view text) {
    double number = 0;
    if (!absl::SimpleAtod(text, &number) || !(number >= min && number <= max)) {
      return Wants(wants, text);
    }
    value = number;
    return absl::OkStatus();
  };
  key.texts = [&value] { return std::vector{NumberText(value)}; };
  return key;
}

// The size as people write it where that loses nothing, else in bytes.
std::string SizeText(int64_t bytes) {
  const std::string text = FormatByteSize(bytes);
  return ParseByteSize(text).value_or(kAutoBytes) == bytes ? text : absl::StrCat(bytes);
}

}  // namespace

std::string NumberText(double value) {
  std::string text = absl::StrFormat("%.15g", value);
  double back = 0;
  if (!absl::SimpleAtod(text, &back) || back != value) text = absl::StrFormat("%.17g", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

ConfigKey TextKey(KeyWords words, std::string& value,
                  std::function<absl::Status(absl::string_view)> check) {
  ConfigKey key = MakeKey(words, Form::kString, "a string");
  key.set = [&value, check = std::move(check)](absl::string_view text) {
    if (absl::Status checked = check ? check(text) : absl::OkStatus(); !checked.ok()) {
      return checked;
    }
    value = std::string(text);
    return absl::OkStatus();
  };
  key.texts = [&value] { return std::vector{value}; };
  return key;
}

ConfigKey PathKey(KeyWords words, std::string& value) {
  ConfigKey key = TextKey(words, value);
  key.set = [&value](absl::string_view text) -> absl::Status {
    GEMINI_ASSIGN_OR_RETURN(value, AbsolutePath(text));
    return absl::OkStatus();
  };
  return key;
}

ConfigKey ChoiceKey(KeyWords words, std::string& value, std::vector<absl::string_view> choices) {
  ConfigKey key = TextKey(words, value, [choices](absl::string_view text) {
    for (absl::string_view choice : choices) {
      if (choice == text) return absl::OkStatus();
    }
    return Wants(absl::StrCat("one of ", absl::StrJoin(choices, ", ")), text);
  });
  key.choices = std::move(choices);
  return key;
}

ConfigKey CountKey(KeyWords words, int64_t& value, int64_t min, int64_t max) {
  ConfigKey key =
      MakeKey(words, Form::kWhole, absl::StrCat("a whole number from ", min, " to ", max));
  key.set = [&value, min, max, wants = key.wants](absl::string_view text) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(text, &count) || count < min || count > max) return Wants(wants, text);
    value = count;
    return absl::OkStatus();
  };
  key.texts = [&value] { return std::vector{absl::StrCat(value)}; };
  return key;
}

ConfigKey NumberKey(KeyWords words, double& value, double min, double below) {
  return RealKey(
      words, value, min, std::nextafter(below, min),
      absl::StrCat("a number of at least ", NumberText(min), " and below ", NumberText(below)));
}

ConfigKey FractionKey(KeyWords words, double& value) {
  return RealKey(words, value, 0, 1, "a number from 0 to 1");
}

ConfigKey SwitchKey(KeyWords words, bool& value) {
  ConfigKey key = MakeKey(words, Form::kSwitch, "true or false");
  key.set = [&value, wants = key.wants](absl::string_view text) {
    if (text != "true" && text != "false") return Wants(wants, text);
    value = text == "true";
    return absl::OkStatus();
  };
  key.texts = [&value] { return std::vector<std::string>{value ? "true" : "false"}; };
  return key;
}

ConfigKey SizeKey(KeyWords words, int64_t& value, int64_t min, int64_t multiple, int64_t max) {
  ConfigKey key = MakeKey(words, Form::kSize, "a size such as 64MiB or a number of bytes");
  key.set = [&value, min, multiple, max](absl::string_view text) -> absl::Status {
    int64_t bytes = kAutoBytes;
    if (text != "auto") {
      GEMINI_ASSIGN_OR_RETURN(bytes, ParseByteSize(text));
      if (bytes < min || bytes > max) {
        return absl::InvalidArgumentError(absl::StrCat(bytes, " is not in ", min, " to ", max));
      }
      if (bytes % multiple != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(bytes, " bytes is not a multiple of ", FormatByteSize(multiple)));
      }
    }
    value = bytes;
    return absl::OkStatus();
  };
  key.texts = [&value] { return std::vector{value == kAutoBytes ? "auto" : SizeText(value)}; };
  return key;
}

ConfigKey RateKey(KeyWords words, int64_t& value) {
  ConfigKey key = MakeKey(words, Form::kSize, "a rate such as 12GiB/s, or 0 for no limit");
  key.set = [&value, wants = key.wants](absl::string_view text) {
    absl::string_view size_text = text;
    const absl::StatusOr<int64_t> size = absl::ConsumeSuffix(&size_text, "/s")
                                             ? ParseByteSize(size_text)
                                             : absl::InvalidArgumentError("no '/s'");
    if (text != "0" && (!size.ok() || *size == 0)) return Wants(wants, text);
    value = text == "0" ? 0 : *size;
    return absl::OkStatus();
  };
  key.texts = [&value] {
    return std::vector<std::string>{value == 0 ? "0" : absl::StrCat(SizeText(value), "/s")};
  };
  return key;
}

ConfigKey NvmeKey(KeyWords words, std::vector<NvmeDirectory>& value) {
  ConfigKey key = MakeKey(words, Form::kList, "an array of \"DIR:SIZE\"");
  key.set = [&value](absl::string_view text) -> absl::Status {
    GEMINI_ASSIGN_OR_RETURN(NvmeDirectory directory, ParseNvmeDirectory(text));
    GEMINI_ASSIGN_OR_RETURN(directory.path, AbsolutePath(directory.path));
    value.push_back(std::move(directory));
    return absl::OkStatus();
  };
  key.texts = [&value] {
    std::vector<std::string> texts;
    for (const NvmeDirectory& directory : value) {
      texts.push_back(absl::StrCat(directory.path, ":", SizeText(directory.capacity_bytes)));
    }
    return texts;
  };
  key.clear = [&value] { value.clear(); };
  return key;
}

}  // namespace gemini
