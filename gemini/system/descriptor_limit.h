// SPDX-License-Identifier: Apache-2.0
// Raises the limit on open descriptors. A slab is a descriptor, and those of a space are open twice
// while it is opened. With the usual soft limit of 1,024 a program that embeds the server has some
// 100 GiB, and all tenants of a daemon have 250 GiB.
#pragma once

namespace gemini {

// Raises the process's soft limit to the hard one. For a program's main: descriptors from 1,024 on
// are not for select(2).
void RaiseDescriptorLimit();

}  // namespace gemini
