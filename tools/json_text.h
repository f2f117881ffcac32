// SPDX-License-Identifier: Apache-2.0
// JSON as memstat writes it. Names come from paths and from clients and may hold any bytes, which
// JSON has not: what is no UTF-8 becomes U+FFFD.
#pragma once
#include <string>

#include "nlohmann/json.hpp"

namespace gemini::tools {

// `indent`: spaces a level; -1 for one line. Without a newline at the end.
inline std::string JsonText(const nlohmann::json& json, int indent = 2) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace gemini::tools
