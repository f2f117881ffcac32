// SPDX-License-Identifier: Apache-2.0
// What memstat shows: a server's status as one screen of text, or as JSON with stable keys.
// Errors: none; the reply was verified by the connection. A peer's texts are escaped.
// Units:  text in binary units; JSON in bytes and nanoseconds, as its keys say.
#pragma once
#include <string>

#include "gemini/wire_generated.h"
#include "nlohmann/json.hpp"

namespace gemini::tools {

// Tiers, tenants, and the spaces with their chunks by state.
std::string StatusText(const wire::StatusReply& status);
nlohmann::json StatusJson(const wire::StatusReply& status);

// A row a chunk: bundle, kind, state, tier, slot, pins, dirty, committed step. FREE chunks are
// counted in the header only by their absence: they are not listed. One header, then a text a page.
std::string ChunksHeader(const std::string& space, const wire::ChunksReply& first_page);
std::string ChunksText(const wire::ChunksReply& page);
// An array, one object a chunk, FREE ones too.
nlohmann::json ChunksJson(const wire::ChunksReply& page);

}  // namespace gemini::tools
