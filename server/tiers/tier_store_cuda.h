// SPDX-License-Identifier: Apache-2.0
// Makes DEVICE memory on a GPU. Each slot is one allocation of CUDA's virtual memory API. The
// server keeps only its exported descriptor, which the client imports and maps, and makes no CUDA
// context.
// Bytes:  CUDA does not promise that they are zero. Drivers clear memory when it is freed or when
//         it is allocated (docs/cuda.md).
// Freed:  when no descriptor, import or mapping of the allocation is left. So Destroy frees a grant
//         only if its client has unmapped it or is dead. A client that does not unmap keeps it.
// Units:  bytes; slots and slabs are multiples of CudaGranularityBytes.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gemini/system/cuda_driver.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

// Makes a store of GPU `ordinal`, as the driver counts them; `driver` outlives it. Tries first,
// with the smallest allocation, whether this machine can export one and import it again.
// FAILED_PRECONDITION: it cannot, as below WSL2.
// UNIMPLEMENTED: the GPU lacks that API. NOT_FOUND: there is no such GPU. RESOURCE_EXHAUSTED: its
// memory is all in use. INVALID_ARGUMENT: slab_bytes.
absl::StatusOr<std::unique_ptr<TierStore>> MakeCudaTierStore(const CudaDriver& driver, int ordinal,
                                                             int64_t capacity_bytes,
                                                             int64_t slab_bytes);

// Returns what sizes of allocations on GPU `ordinal` must be multiples of: 2 MiB on all known ones.
absl::StatusOr<int64_t> CudaGranularityBytes(const CudaDriver& driver, int ordinal);

// Returns the slab size for a DEVICE of `capacity_bytes`. It is at least a 200th of that, so that
// the slabs of the largest lease fit one message, and at least 64 MiB, so that few have to be
// mapped. It is up to half larger if the capacity is then a whole number of slabs.
int64_t CudaSlabBytes(int64_t capacity_bytes, int64_t granularity_bytes);

}  // namespace gemini::server
