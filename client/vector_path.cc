// SPDX-License-Identifier: Apache-2.0
#include "client/vector_path.h"

namespace gemini::client {

bool VectorPathAvailable(VectorPath path) {
#if defined(__x86_64__)
  switch (path) {
    case VectorPath::kPortable:
      return true;
    case VectorPath::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case VectorPath::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             VectorPathAvailable(VectorPath::kAvx2);
  }
#endif
  return path == VectorPath::kPortable;
}

VectorPath WidestVectorPath() {
  static const VectorPath widest = [] {
    for (const VectorPath path : {VectorPath::kAvx512, VectorPath::kAvx2}) {
      if (VectorPathAvailable(path)) return path;
    }
    return VectorPath::kPortable;
  }();
  return widest;
}

}  // namespace gemini::client
