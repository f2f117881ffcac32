// SPDX-License-Identifier: Apache-2.0
// Binds one key of a program's configuration to the variable that has its value. A key reads the
// same as a flag and in a TOML file, whatever its type is.
// Owner:  the variable outlives the key.
// Errors: INVALID_ARGUMENT for what a user can write wrongly. The message says what is allowed, and
//         leaves it to the caller to say where it was written. The variable keeps its value then.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gemini/nvme_directory.h"

namespace gemini {

// The stand-in for "auto" in a byte size: the program decides.
inline constexpr int64_t kAutoBytes = -1;
// No size is larger (ParseByteSize).
inline constexpr int64_t kMaxBytes = int64_t{1} << 62;

// How a key may change when a run is resumed from a checkpoint.
enum class ResumeRule : uint8_t {
  kFixed,      // It may not change, because the run would compute something else.
  kGrow,       // It may become larger.
  kFree,       // It may change, because it does not affect the numbers that the run computes.
  kNotStored,  // It concerns this invocation only, and is not written to a file.
};

// What a key is called, and its rule.
struct KeyWords {
  absl::string_view name;        // "device-memory"; as a flag, with two dashes before it.
  absl::string_view value_name;  // "SIZE"; a switch has none.
  absl::string_view help;
  ResumeRule resume = ResumeRule::kFixed;
};

struct ConfigKey : KeyWords {
  // The type of the TOML value. kSize: a string or a whole number. kList: an array of strings, or
  // one string; the flag is repeated for each element.
  enum class Form : uint8_t { kString, kWhole, kNumber, kSwitch, kSize, kList };
  Form form = Form::kString;
  // What the value must be, for messages: "a whole number".
  std::string wants;
  std::vector<absl::string_view> choices = {};
  // The key of the same variable that this one is another spelling of; empty: of none.
  absl::string_view same_as = {};
  // Sets the variable from a text. For a list, adds one element.
  std::function<absl::Status(absl::string_view text)> set = {};
  // Returns the texts from which `set` gives the present value again, one for each element.
  std::function<std::vector<std::string>()> texts = {};
  std::function<void()> clear = {};  // Removes all elements. Only a list has it.
};

// `check` returns what is wrong with a text, or nothing.
ConfigKey TextKey(KeyWords words, std::string& value,
                  std::function<absl::Status(absl::string_view)> check = {});
// The value becomes absolute, from the current directory, so that a file means the same elsewhere.
ConfigKey PathKey(KeyWords words, std::string& value);
// The value is one of `choices`, whose texts outlive the key.
ConfigKey ChoiceKey(KeyWords words, std::string& value, std::vector<absl::string_view> choices);
ConfigKey CountKey(KeyWords words, int64_t& value, int64_t min, int64_t max);
// min <= value < below.
ConfigKey NumberKey(KeyWords words, double& value, double min, double below);
ConfigKey FractionKey(KeyWords words, double& value);  // 0 <= value <= 1.
ConfigKey SwitchKey(KeyWords words, bool& value);
// A multiple of `multiple` from `min` on, or kAutoBytes for "auto".
ConfigKey SizeKey(KeyWords words, int64_t& value, int64_t min, int64_t multiple = 1,
                  int64_t max = kMaxBytes);
ConfigKey RateKey(KeyWords words, int64_t& value);  // Bytes a second. 0: no limit.
// The directories' paths become absolute.
ConfigKey NvmeKey(KeyWords words, std::vector<NvmeDirectory>& value);

// Returns the shortest text that reads back as the same double, and that TOML takes for a float.
std::string NumberText(double value);

}  // namespace gemini
