// SPDX-License-Identifier: Apache-2.0
// Has MKL choose the kernels of its vector functions while one thread alone calls them.
// Torch computes exp, log, sin, cos, tanh, sqrt and others of contiguous floats by MKL. That
// chooses a kernel at a function's first call, and if that call runs on several threads, one of
// them may be given the least accurate one, once: some 1,000 units of the last place off. So 3 of
// 100 runs of one program would differ (pytorch/pytorch issue 188792; MKL 2024.2).
// Thread: any. Without MKL it does nothing that matters.
#pragma once

namespace gemini::client::hooks {

// The first call of a process must come before Torch computes with several threads; later ones
// return at once.
void ResolveVectorMath();

}  // namespace gemini::client::hooks
