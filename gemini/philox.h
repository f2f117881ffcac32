// SPDX-License-Identifier: Apache-2.0
// Computes random numbers from a counter instead of drawing them in order: the same counter and key
// always give the same four words, regardless of the caller and of earlier calls.
// Source: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1,
// 2, 3" (SC 2011), section 4.3.
#pragma once
#include <array>
#include <cstdint>

namespace gemini {

constexpr std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, uint64_t key) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * counter[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return counter;
}

}  // namespace gemini
