// SPDX-License-Identifier: Apache-2.0
// What the kernel's answer to one read or write means for the transfer that it is a part of: the
// same for every engine.
// Thread: any.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/nvme/nvme_io.h"

namespace gemini::server {

// The most answers in a row that mean "again". It is far more than signals or a short lack of
// memory explain.
inline constexpr int kMaxNvmeRefusals = 1000;

// Interprets the kernel's `result` for a request of `size_bytes` that begins `begin_bytes` into the
// transfer: a count of bytes, or a negative errno. Returns how many bytes are done. If that is
// fewer than all, request the rest again from there. Only whole pages count, because O_DIRECT can
// only continue at a page. `refusals` counts the answers in a row that moved nothing and mean
// "again"; begin with 0.
// DATA_LOSS: the device failed, or less than a page was moved, because the extent ends early.
// RESOURCE_EXHAUSTED: no space, or kMaxNvmeRefusals in a row. ABORTED: the kernel cancelled the
// request, because its thread ended.
absl::StatusOr<int64_t> MovedBytes(const NvmeTransfer& transfer, int64_t begin_bytes,
                                   int64_t size_bytes, int64_t result, int& refusals);

}  // namespace gemini::server
