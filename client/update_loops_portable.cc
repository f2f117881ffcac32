// SPDX-License-Identifier: Apache-2.0
#include "client/lanes_portable.h"
#include "client/norm_loop.h"
#include "client/update_loops.h"

namespace gemini::client {

constexpr UpdateLoops kUpdateLoopsPortable = MakeUpdateLoops<LanesPortable>();

}  // namespace gemini::client
