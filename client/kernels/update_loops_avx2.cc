// SPDX-License-Identifier: Apache-2.0
// Compiled for its instruction set as a whole (client/CMakeLists.txt), so it defines nothing that
// another source could define too: all code is of templates over these lanes.
#include "client/kernels/lanes_avx2.h"
#include "client/kernels/norm_loop.h"
#include "client/kernels/update_loops.h"

#if defined(__x86_64__)
namespace gemini::client {

constexpr UpdateLoops kUpdateLoopsAvx2 = MakeUpdateLoops<LanesAvx2>();

}  // namespace gemini::client
#endif
