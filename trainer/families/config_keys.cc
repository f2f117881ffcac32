// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/config_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

// Sizes up to it: products of two of them, times an element's bytes, stay in 63 bits.
constexpr int64_t kMaxSize = (int64_t{1} << 28) - 1;
constexpr int64_t kMostBlocks = 1 << 16;  // A hundred times those of the deepest models.

struct ActivationName {
  absl::string_view name;
  Activation activation;
};
// The names of transformers. gelu_new and gelu_pytorch_tanh are one function there, computed in two
// ways; we use the fused one, which keeps one tensor for backward instead of four.
constexpr std::array<ActivationName, 7> kActivations = {{
    {"relu", Activation::kRelu},
    {"gelu", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
}};

std::string Print(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 100 ? text : absl::StrCat(text.substr(0, 100), "...");
}

}  // namespace

bool ConfigKeys::IsNull(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && found->is_null();
}

std::vector<std::string> ConfigKeys::UnreadKeys() const {
  std::vector<std::string> keys = unread_inside_;
  for (const auto& item : json_.items()) {
    if (!asked_.contains(item.key())) keys.push_back(item.key());
  }
  std::ranges::sort(keys);
  return keys;
}

void ConfigKeys::Ignore(std::initializer_list<const char*> keys) {
  asked_.insert(keys.begin(), keys.end());
}

void ConfigKeys::Size(std::initializer_list<const char*> keys, int64_t& value, int64_t minimum) {
  SizeUpTo(keys, value, minimum, kMaxSize);
}

void ConfigKeys::NumBlocks(std::initializer_list<const char*> keys, int64_t& value) {
  SizeUpTo(keys, value, /*minimum=*/1, kMostBlocks);
}

void ConfigKeys::SizeUpTo(std::initializer_list<const char*> keys, int64_t& value, int64_t minimum,
                          int64_t maximum) {
  const auto [key, found] = Find(keys);
  if (found == nullptr) return;
  if (!found->is_number_integer() || found->get<int64_t>() < minimum || *found > Json(maximum)) {
    return Refuse(key, *found, absl::StrCat("a whole number from ", minimum, " to ", maximum));
  }
  value = found->get<int64_t>();
}

void ConfigKeys::Sizes(const char* key, std::vector<int64_t>& values) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  const auto is_size = [](const Json& part) {
    return part.is_number_integer() && part >= Json(0) && part <= Json(kMaxSize);
  };
  if (!found->is_array() || !std::ranges::all_of(*found, is_size)) {
    return Refuse(key, *found, absl::StrCat("a list of whole numbers from 0 to ", kMaxSize));
  }
  values = found->get<std::vector<int64_t>>();
}

void ConfigKeys::HeightAndWidth(const char* key, int64_t& height, int64_t& width) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  const auto is_size = [](const Json& part) {
    return part.is_number_integer() && part >= Json(1) && part <= Json(kMaxSize);
  };
  if (is_size(*found)) {
    height = width = found->get<int64_t>();
    return;
  }
  if (!found->is_array() || found->size() != 2 || !std::ranges::all_of(*found, is_size)) {
    return Refuse(key, *found,
                  absl::StrCat("a whole number from 1 to ", kMaxSize,
                               ", or a list of two, a height and a width"));
  }
  height = found->at(0).get<int64_t>();
  width = found->at(1).get<int64_t>();
}

void ConfigKeys::Probability(const char* key, double& value) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_number() || !(found->get<double>() >= 0 && found->get<double>() < 1)) {
    return Refuse(key, *found, "a number from 0 to below 1");
  }
  value = found->get<double>();
}

void ConfigKeys::Fraction(const char* key, double& value) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_number() || !(found->get<double>() > 0 && found->get<double>() <= 1)) {
    return Refuse(key, *found, "a number above 0 and at most 1");
  }
  value = found->get<double>();
}

void ConfigKeys::Positive(const char* key, double& value) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_number() || !(found->get<double>() > 0) || !std::isfinite(found->get<double>())) {
    return Refuse(key, *found, "a number above 0");
  }
  value = found->get<double>();
}

void ConfigKeys::Require(const char* key) {
  if (status_.ok() && Find({key}).second == nullptr) {
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": has no ", key));
  }
}

void ConfigKeys::RequiredPositives(const char* key, size_t count, std::vector<double>& values) {
  Require(key);
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  values.clear();
  for (const Json& part : *found) {
    // As normal numbers of fp32, in which they are used.
    const double value = part.is_number() ? part.get<double>() : 0;
    if (value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max()) {
      values.push_back(value);
    }
  }
  if (!found->is_array() || found->size() != count || values.size() != count) {
    Refuse(key, *found, absl::StrCat("a list of ", count, " numbers above 0"));
  }
}

void ConfigKeys::RequiredPositive(const char* key, double& value) {
  Require(key);
  Positive(key, value);
}

void ConfigKeys::PositiveOrNull(const char* key, double& value) {
  if (IsNull(key)) value = 0;
  Positive(key, value);
}

void ConfigKeys::PositiveUnlessZero(const char* key, double& value) {
  const Json* found = Find({key}).second;
  if (found != nullptr && found->is_number() && found->get<double>() == 0) return;
  Positive(key, value);
}

void ConfigKeys::NotNegative(const char* key, double& value) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_number() || !(found->get<double>() >= 0) || !std::isfinite(found->get<double>())) {
    return Refuse(key, *found, "a number of 0 or more");
  }
  value = found->get<double>();
}

void ConfigKeys::Flag(const char* key, bool& value) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_boolean()) return Refuse(key, *found, "true or false");
  value = found->get<bool>();
}

void ConfigKeys::ActivationKey(const char* key, Activation& value) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_string()) return Refuse(key, *found, "the name of an activation");
  for (const ActivationName& entry : kActivations) {
    if (found->get_ref<const std::string&>() == entry.name) {
      value = entry.activation;
      return;
    }
  }
  Unsupported(absl::StrCat(
      key, " = ", Print(*found), "; supported are ",
      absl::StrJoin(kActivations, ", ", [](std::string* out, const ActivationName& entry) {
        absl::StrAppend(out, entry.name);
      })));
}

void ConfigKeys::OneOf(std::initializer_list<const char*> keys,
                       absl::Span<const absl::string_view> names, size_t& value) {
  const auto [key, found] = Find(keys);
  if (found != nullptr) value = IndexIn(names, key, *found);
}

void ConfigKeys::ListOf(const char* key, absl::Span<const absl::string_view> names, size_t count,
                        std::vector<size_t>& values) {
  const Json* found = Find({key}).second;
  if (found == nullptr) return;
  if (!found->is_array() || found->size() != count) {
    return Refuse(key, *found, absl::StrCat("a list of ", count, " names"));
  }
  values.clear();
  for (const Json& part : *found) values.push_back(IndexIn(names, key, part));
}

size_t ConfigKeys::IndexIn(absl::Span<const absl::string_view> names, const char* key,
                           const Json& value) {
  if (!value.is_string()) {
    Refuse(key, value, "a name");
    return 0;
  }
  const auto place = std::ranges::find(names, value.get_ref<const std::string&>());
  if (place == names.end()) {
    Unsupported(
        absl::StrCat(key, " = ", Print(value), "; supported are ", absl::StrJoin(names, ", ")));
    return 0;
  }
  return static_cast<size_t>(place - names.begin());
}

void ConfigKeys::Within(std::initializer_list<const char*> keys,
                        absl::FunctionRef<void(ConfigKeys&)> read) {
  Ignore(keys);
  for (const char* key : keys) {
    const Json* found = Find({key}).second;
    if (found == nullptr) continue;
    if (!found->is_object()) return Refuse(key, *found, "an object");
    if (found->empty()) continue;
    const std::string where = absl::StrCat(where_, ": ", key);
    ConfigKeys inside(*found, where);
    read(inside);
    status_ = inside.status();
    for (const std::string& unread : inside.UnreadKeys()) {
      unread_inside_.push_back(absl::StrCat(key, ".", unread));
    }
    return;
  }
}

void ConfigKeys::MustBeOn(const char* key) {
  const Json* found = Find({key}).second;
  if (found == nullptr || *found == Json(true)) return;
  Unsupported(absl::StrCat(key, " = ", Print(*found), "; only true"));
}

void ConfigKeys::MustNotBeNull(const char* key) {
  if (status_.ok() && IsNull(key)) Refuse(key, Json(), "a value");
}

void ConfigKeys::MustBe(const char* key, double value) {
  const Json* found = Find({key}).second;
  if (found == nullptr || (found->is_number() && found->get<double>() == value)) return;
  Unsupported(absl::StrCat(key, " = ", Print(*found), "; only ", value));
}

void ConfigKeys::MustBeOff(const char* key) {
  const Json* found = Find({key}).second;
  if (found == nullptr || *found == Json(false)) return;
  if (found->is_number() && found->get<double>() == 0) return;
  Unsupported(absl::StrCat(key, " = ", Print(*found), "; only models without it"));
}

void ConfigKeys::MustDivide(absl::string_view what, int64_t whole, absl::string_view by,
                            int64_t parts) {
  if (!status_.ok() || whole % parts == 0) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where_, ": ", what, " ", whole, " is not divisible by ", by, " ", parts));
}

void ConfigKeys::MustNotExceed(absl::string_view what, int64_t value, absl::string_view of,
                               int64_t bound) {
  if (!status_.ok() || value <= bound) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where_, ": ", what, " ", value, " is above ", of, " ", bound));
}

void ConfigKeys::MustBeBelow(absl::string_view what, int64_t value, absl::string_view of,
                             int64_t bound) {
  if (!status_.ok() || value < bound) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where_, ": ", what, " ", value, " is past ", of, " ", bound));
}

std::pair<const char*, const Json*> ConfigKeys::Find(std::initializer_list<const char*> keys) {
  if (!status_.ok()) return {"", nullptr};
  Ignore(keys);
  for (const char* key : keys) {
    const auto found = json_.find(key);
    if (found != json_.end() && !found->is_null()) return {key, &*found};
  }
  return {"", nullptr};
}

void ConfigKeys::Refuse(absl::string_view key, const Json& value, absl::string_view expected) {
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where_, ": ", key, " = ", Print(value), ", expected ", expected));
}

void ConfigKeys::Unsupported(absl::string_view what) {
  status_ = absl::UnimplementedError(absl::StrCat(where_, ": unsupported ", what));
}

}  // namespace gemini::trainer
