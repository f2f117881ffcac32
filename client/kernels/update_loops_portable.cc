// SPDX-License-Identifier: Apache-2.0
#include "client/kernels/lanes_portable.h"
#include "client/kernels/norm_loop.h"
#include "client/kernels/update_loops.h"

namespace gemini::client {

constexpr UpdateLoops kUpdateLoopsPortable = MakeUpdateLoops<LanesPortable>();

}  // namespace gemini::client
