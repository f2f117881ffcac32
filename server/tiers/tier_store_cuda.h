// SPDX-License-Identifier: Apache-2.0
// DEVICE on a GPU. Each slot is an allocation of CUDA's virtual memory API, and an extent of its
// own: its exported descriptor is all that is kept of it, and goes to the client, which maps it
// where it likes. No context is made here.
// Bytes:  not zeroed by any promise of CUDA's; drivers scrub what is freed, or clear what they give
//         (docs/cuda.md).
// Freed:  when nobody has the descriptor, an import or a mapping of it any more. So Destroy frees a
//         grant after its client has let go of it or is dead; of one that lies about that, it stays
//         the client's.
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

// What the size of an allocation of GPU `ordinal` must be a multiple of: 2 MiB on all known ones.
absl::StatusOr<int64_t> CudaGranularityBytes(const CudaDriver& driver, int ordinal);

// Slabs of which a lease of all of `capacity_bytes` goes into one message, and that take few calls
// each to map; up to half as large again where whole ones are the capacity then.
int64_t CudaSlabBytes(int64_t capacity_bytes, int64_t granularity_bytes);

}  // namespace gemini::server
