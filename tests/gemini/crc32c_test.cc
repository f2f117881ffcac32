// SPDX-License-Identifier: Apache-2.0
#include "gemini/crc32c.h"

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gemini {
namespace {

std::vector<std::byte> Bytes(size_t size, unsigned first, int step) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(first + static_cast<unsigned>(step) * i);
  }
  return bytes;
}

// Bit by bit, as the polynomial is defined: the slow, obvious one.
uint32_t OneBitAtATime(absl::Span<const std::byte> bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

// RFC 3720, B.4. The four bytes of a sum stand there in the order in which they are sent.
TEST(Crc32cTest, HoldsTheTestVectorsOfRfc3720) {
  EXPECT_EQ(Crc32c(Bytes(32, 0x00, 0)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(Bytes(32, 0xff, 0)), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Bytes(32, 0x00, 1)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Bytes(32, 0x1f, -1)), 0x113fdb5cu);
  const std::vector<unsigned> read_command = {
      0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  std::vector<std::byte> bytes;
  for (const unsigned value : read_command) bytes.push_back(static_cast<std::byte>(value));
  EXPECT_EQ(Crc32c(bytes), 0xd9963a56u);
}

TEST(Crc32cTest, NoBytesHaveTheSumZero) { EXPECT_EQ(Crc32c({}), 0u); }

// Property: any length and alignment, against the definition.
TEST(Crc32cTest, EqualsTheDefinitionForAllLengthsAndAlignments) {
  std::mt19937_64 random(/*seed=*/3);
  std::vector<std::byte> bytes(5000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 300; ++round) {
    const size_t first = random() % 64;
    const size_t size = round < 100 ? static_cast<size_t>(round) : random() % (5000 - 64);
    const absl::Span<const std::byte> part = absl::MakeConstSpan(bytes).subspan(first, size);
    ASSERT_EQ(Crc32c(part), OneBitAtATime(part)) << "first " << first << ", size " << size;
  }
}

TEST(Crc32cTest, FindsEveryFlippedBitOfAPage) {
  std::vector<std::byte> page = Bytes(4096, 7, 3);
  const uint32_t sum = Crc32c(page);
  for (size_t bit = 0; bit < 8 * page.size(); ++bit) {
    page[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_NE(Crc32c(page), sum) << "bit " << bit;
    page[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace
}  // namespace gemini
