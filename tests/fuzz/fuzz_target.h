// SPDX-License-Identifier: Apache-2.0
// What every fuzz target has beside LLVMFuzzerTestOneInput: seeds that the real writers make, so
// that no bytes lie in the repository. fuzz_target.cc writes them into the first corpus folder that
// the command names.
// Errors: an invariant that breaks is a trap: GEMINI_CHECK.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gemini::fuzz {

// Each target defines it. Small inputs that reach as deep as possible.
std::vector<std::string> Seeds();

// The input itself, in the heap block that libFuzzer made for it: a read past its end is found.
inline absl::string_view BytesOf(const uint8_t* data, size_t size) {
  return absl::string_view(reinterpret_cast<const char*>(data), size);
}

}  // namespace gemini::fuzz
