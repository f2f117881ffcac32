// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/vector_path.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gemini::client {
namespace {

#if defined(__x86_64__)
// Not __builtin_cpu_supports("f16c"): clang 14 does not know that name. Asked once: in a virtual
// machine the hypervisor answers, in some 20 us, which is as long as 16,384 elements take to be
// updated.
bool CpuHasF16c() {
  static const bool has = [] {
    unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }();
  return has;
}
#endif

}  // namespace

bool VectorPathAvailable(VectorPath path) {
#if defined(__x86_64__)
  switch (path) {
    case VectorPath::kPortable:
      return true;
    case VectorPath::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && CpuHasF16c();
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
