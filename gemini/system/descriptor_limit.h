// SPDX-License-Identifier: Apache-2.0
// A slab is a descriptor, and a space's are open twice while it is opened: 1,024, the usual soft
// limit, are some 100 GiB for a program that embeds the server, and 250 GiB for all tenants of a
// daemon.
#pragma once

namespace gemini {

// Raises the process's soft limit to the hard one. For a program's main: descriptors from 1,024 on
// are not for select(2).
void RaiseDescriptorLimit();

}  // namespace gemini
