// SPDX-License-Identifier: Apache-2.0
// Shows a server's status as one screen of text, or as JSON with stable keys, for memstat.
// Errors: none; the connection has verified the reply. A peer's texts are escaped.
// Units: text in binary units; JSON in bytes and nanoseconds, as its keys say.
#pragma once
#include <string>

#include "gemini/wire_generated.h"
#include "nlohmann/json.hpp"

namespace gemini::tools {

// Shows tiers, tenants, and the spaces with their chunks by state.
std::string StatusText(const wire::StatusReply& status);
nlohmann::json StatusJson(const wire::StatusReply& status);

// Returns a row for each chunk: bundle, kind, state, tier, slot, pins, dirty, committed step. FREE
// chunks are not listed. One header, then a text for each page.
std::string ChunksHeader(const std::string& space, const wire::ChunksReply& first_page);
std::string ChunksText(const wire::ChunksReply& page);
// Returns an array with one object for each chunk, FREE ones too.
nlohmann::json ChunksJson(const wire::ChunksReply& page);

}  // namespace gemini::tools
