// SPDX-License-Identifier: Apache-2.0
#include "client/update_loops.h"

#include "gemini/check.h"

namespace gemini::client {

const UpdateLoops& LoopsOf(VectorPath path) {
  GEMINI_CHECK(VectorPathAvailable(path));
#if defined(__x86_64__)
  if (path == VectorPath::kAvx512) return kUpdateLoopsAvx512;
  if (path == VectorPath::kAvx2) return kUpdateLoopsAvx2;
#endif
  return kUpdateLoopsPortable;
}

}  // namespace gemini::client
