// SPDX-License-Identifier: Apache-2.0
// Raises the limit on open file descriptors. Each slab of memory is a descriptor, and a space has
// each of its slabs open twice while it is being opened. The usual soft limit of 1,024 would bound
// a program that embeds the server to some 100 GiB, and all tenants of a daemon together to 250
// GiB.
#pragma once

namespace gemini {

// Raises the process's soft limit to the hard one. Call it in a program's main: select(2) cannot
// use descriptors from 1,024 on.
void RaiseDescriptorLimit();

}  // namespace gemini
