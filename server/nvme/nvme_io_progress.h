// SPDX-License-Identifier: Apache-2.0
// What the kernel's answer to one read or write means for the transfer that it is a part of: the
// same for every engine.
// Thread: any.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/nvme/nvme_io.h"

namespace gemini::server {

// Far more than signals or a moment without memory explain.
inline constexpr int kMaxNvmeRefusals = 1000;

// `result` is the count, or the errno with a minus, of moving the `size_bytes` that begin
// `begin_bytes` into the transfer. Returns how many of them are done: fewer than all when the rest
// is to be asked for again, from there. Whole pages only, for O_DIRECT goes on at no other place:
// an answer of less than a page is an extent that ends inside it. `refusals` counts the answers in
// a row that moved nothing and mean "again": what is kept for one such place begins at 0.
// DATA_LOSS: the device failed, or the data end early. RESOURCE_EXHAUSTED: no space, or
// kMaxNvmeRefusals in a row. ABORTED: the kernel cancelled it, because the thread that asked for it
// ended.
absl::StatusOr<int64_t> MovedBytes(const NvmeTransfer& transfer, int64_t begin_bytes,
                                   int64_t size_bytes, int64_t result, int& refusals);

}  // namespace gemini::server
