// SPDX-License-Identifier: Apache-2.0
// GEMINI_HOST_DEVICE marks functions that CUDA kernels call, too. For other compilers it is empty.
#pragma once

#ifdef __CUDACC__
#define GEMINI_HOST_DEVICE __host__ __device__
#else
#define GEMINI_HOST_DEVICE
#endif
