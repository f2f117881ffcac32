// SPDX-License-Identifier: Apache-2.0
#include "gemini/byte_size.h"

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

TEST(ByteSizeTest, NumbersWithAndWithoutBinaryUnitsParse) {
  EXPECT_THAT(ParseByteSize("0"), IsOkAndHolds(0));
  EXPECT_THAT(ParseByteSize("4096"), IsOkAndHolds(4096));
  EXPECT_THAT(ParseByteSize("7B"), IsOkAndHolds(7));
  EXPECT_THAT(ParseByteSize("64MiB"), IsOkAndHolds(64 * kMiB));
  EXPECT_THAT(ParseByteSize("1.5GiB"), IsOkAndHolds(kGiB + kGiB / 2));
  EXPECT_THAT(ParseByteSize("2 TiB"), IsOkAndHolds(2048 * kGiB));
  EXPECT_THAT(ParseByteSize("  3 KiB "), IsOkAndHolds(3 * kKiB));
  EXPECT_THAT(ParseByteSize("4194304TiB"), IsOkAndHolds(int64_t{1} << 62));
}

TEST(ByteSizeTest, DecimalUnitsAreRefusedWithTheUnitsToUse) {
  for (const char* text : {"1GB", "64M", "2g", "1 mib", "3kB"}) {
    EXPECT_THAT(ParseByteSize(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("GiB")))
        << text;
  }
}

TEST(ByteSizeTest, WhatIsNoSizeIsRefusedAndQuoted) {
  for (const char* text : {"", " ", "-1", "-1GiB", "+1", "MiB", ".", "1.2.3", "1e3", "inf", "nan",
                           "0x10", "1 2", "1MiB MiB", "1M\xc3"}) {
    EXPECT_THAT(ParseByteSize(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'")))
        << text;
  }
}

TEST(ByteSizeTest, SizesAboveTwoToThe62AreRefused) {
  for (const char* text : {"4194305TiB", "9223372036854775808", "99999999999999999999999999GiB"}) {
    EXPECT_THAT(ParseByteSize(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2^62")))
        << text;
  }
}

TEST(ByteSizeTest, FormattingUsesTheLargestUnitWithOneDecimalAtMost) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(kKiB), "1 KiB");
  EXPECT_EQ(FormatByteSize(kGiB + kGiB / 2), "1.5 GiB");
  EXPECT_EQ(FormatByteSize(-3 * kMiB), "-3 MiB");
  EXPECT_EQ(FormatByteSize(INT64_MIN), "-8388608 TiB");
}

TEST(ByteSizeTest, RoundedSizesNeverReachTheNextUnit) {
  EXPECT_EQ(FormatByteSize(kMiB - 1), "1 MiB");
  EXPECT_EQ(FormatByteSize(-(kGiB - 1)), "-1 GiB");
}

// Property: who gives as much as was said to be needed at least gives enough, and not a unit too
// much.
TEST(ByteSizeTest, ASizeRoundedUpIsNeverLess) {
  EXPECT_EQ(FormatByteSizeUp(kMiB), "1 MiB");
  EXPECT_EQ(FormatByteSizeUp(kMiB + 1), "1.1 MiB");
  EXPECT_EQ(FormatByteSizeUp(kMiB - 1), "1 MiB");
  std::mt19937_64 random(2);
  for (int i = 0; i < 10'000; ++i) {
    const auto size = static_cast<int64_t>(random() >> (2 + random() % 60));
    ASSERT_OK_AND_ASSIGN(const int64_t parsed, ParseByteSize(FormatByteSizeUp(size)));
    ASSERT_GE(parsed, size);
    ASSERT_LE(static_cast<double>(parsed), static_cast<double>(size) * 1.1 + 1) << size;
  }
}

// Property: what is written comes back within the half decimal that it drops.
TEST(ByteSizeTest, AFormattedSizeParsesToNearlyItself) {
  std::mt19937_64 random(/*seed=*/11);
  for (int round = 0; round < 10'000; ++round) {
    const int64_t size_bytes = static_cast<int64_t>(random() >> (2 + random() % 60));
    const std::string text = FormatByteSize(size_bytes);
    ASSERT_OK_AND_ASSIGN(const int64_t parsed, ParseByteSize(text));
    const double difference = static_cast<double>(parsed) - static_cast<double>(size_bytes);
    ASSERT_LE(std::abs(difference), 0.051 * static_cast<double>(size_bytes)) << text;
  }
}

TEST(ByteSizeTest, RoundUpReachesTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 256), 0);
  EXPECT_EQ(RoundUp(1, 256), 256);
  EXPECT_EQ(RoundUp(256, 256), 256);
  EXPECT_EQ(RoundUp(257, 256), 512);
}

}  // namespace
}  // namespace gemini
