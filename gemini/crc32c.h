// SPDX-License-Identifier: Apache-2.0
// Computes CRC32C, the checksum of the chunks on NVMe. It finds every burst of damage up to 32 bits
// long, and all but one in 2^32 of other damage.
// Source: the polynomial of Castagnoli, Braeuer and Herrmann (IEEE Transactions on Communications
// 41, 1993), with the initial value and the inversions of RFC 3720, 12.1.
// Thread: any.
// Cost: reads the bytes once, at the speed of memory where the processor has a carry-less
// multiplication.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace gemini {

uint32_t Crc32c(absl::Span<const std::byte> bytes);

}  // namespace gemini
