// SPDX-License-Identifier: Apache-2.0
// Compiled for its instruction set as a whole (client/CMakeLists.txt), so it defines nothing that another
// source could define too: all code is of templates over these lanes.
#include "client/lanes_avx512.h"
#include "client/norm_loop.h"
#include "client/update_loops.h"

#if defined(__x86_64__)
namespace gemini::client {

constexpr UpdateLoops kUpdateLoopsAvx512 = MakeUpdateLoops<LanesAvx512>();

}  // namespace gemini::client
#endif
