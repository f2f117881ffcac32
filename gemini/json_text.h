// SPDX-License-Identifier: Apache-2.0
// Writes and reads JSON for Gemini's programs. Names come from paths and from clients and may hold
// any bytes, which JSON does not allow: what is no UTF-8 is written as U+FFFD.
// Thread: any.
#pragma once
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace gemini {

// `json`: nlohmann::json, or its like that keeps the order of keys. `indent`: spaces a level; -1
// for one line. Returns it without a newline at the end.
template <typename Json>
std::string JsonText(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Returns what `read` makes of the object that `text` has, an absl::StatusOr. INVALID_ARGUMENT:
// there is no object, or it lacks a key that `read` asks for, or has another type there. Nlohmann's
// library throws then, and the exception ends here.
template <typename Read>
auto ReadJsonObject(absl::string_view text, Read read) -> decltype(read(nlohmann::json())) {
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    if (!json.is_object()) return absl::InvalidArgumentError("a line that is no JSON object");
    return read(std::move(json));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace gemini
