// SPDX-License-Identifier: Apache-2.0
// Lists the instruction sets that the loops of updates and norms are compiled for. The widest that
// the processor has is chosen at run time, and all give the same bits.
#pragma once
#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace gemini::client {

// kAvx2 also needs FMA and F16C, kAvx512 the F, BW, DQ and VL groups.
enum class VectorPath : uint8_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
inline constexpr std::array<VectorPath, 3> kAllVectorPaths = {
    VectorPath::kPortable, VectorPath::kAvx2, VectorPath::kAvx512};

// Returns "portable", "avx2" or "avx512".
constexpr absl::string_view VectorPathName(VectorPath path) {
  constexpr std::array<absl::string_view, 3> kNames = {"portable", "avx2", "avx512"};
  return kNames[static_cast<int>(path)];
}

// Returns whether this processor, and this build, have the path. Asks the processor once.
bool VectorPathAvailable(VectorPath path);

// Returns the widest path that is available. Asks the processor once.
VectorPath WidestVectorPath();

}  // namespace gemini::client
