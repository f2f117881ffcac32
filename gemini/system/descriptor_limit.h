// SPDX-License-Identifier: Apache-2.0
// Raises the limit on open descriptors. A slab is a descriptor, and those of a space are open twice
// while it is opened. With the usual soft limit of 1,024 a program that embeds the server has some
// 100 GiB, and all tenants of a daemon have 250 GiB.
#pragma once

namespace gemini {

// Raises the process's soft limit to the hard one. Call it in a program's main: select(2) cannot
// use descriptors from 1,024 on.
void RaiseDescriptorLimit();

}  // namespace gemini
