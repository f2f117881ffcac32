// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_wear.h"

#include "absl/time/civil_time.h"
#include "gemini/byte_size.h"
#include "gtest/gtest.h"

namespace gemini::server {
namespace {

absl::Time Utc(int day, int hour, int minute) {
  return absl::FromCivil(absl::CivilMinute(2026, 11, day, hour, minute), absl::UTCTimeZone());
}

TEST(NvmeWearTest, CountsEachDirectoryForEverAndByUtcDay) {
  NvmeWear wear({{.path = "/a"}, {.path = "/b"}}, 0);
  wear.Add(0, 4 * kMiB, Utc(21, 23, 59));
  wear.Add(1, 5 * kMiB, Utc(21, 23, 59));
  wear.Add(0, 6 * kMiB, Utc(22, 0, 0));
  const std::vector<DirectoryWear> read = wear.Read(Utc(22, 0, 1));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].path, "/a");
  EXPECT_EQ(read[0].written_bytes, 10 * kMiB);
  EXPECT_EQ(read[0].written_today_bytes, 6 * kMiB);
  EXPECT_EQ(read[1].path, "/b");
  EXPECT_EQ(read[1].written_bytes, 5 * kMiB);
  EXPECT_EQ(read[1].written_today_bytes, 0);  // Nothing since midnight.
  EXPECT_EQ(wear.Read(Utc(21, 23, 59))[1].written_today_bytes, 5 * kMiB);
}

TEST(NvmeWearTest, SaysOnceADayThatTheBudgetIsPassed) {
  NvmeWear wear({{.path = "/a"}, {.path = "/b"}}, 10 * kMiB);
  for (int day = 20; day < 23; ++day) {
    EXPECT_FALSE(wear.Add(0, 10 * kMiB, Utc(day, 8, 0)));  // All of it, and no more.
    EXPECT_FALSE(wear.Add(1, 9 * kMiB, Utc(day, 8, 0)));
    EXPECT_TRUE(wear.Add(0, kMiB, Utc(day, 9, 0)));
    EXPECT_FALSE(wear.Add(0, kMiB, Utc(day, 10, 0)));
    EXPECT_TRUE(wear.Add(1, 90 * kMiB, Utc(day, 11, 0)));
    EXPECT_FALSE(wear.Add(1, kMiB, Utc(day, 12, 0)));
  }
}

TEST(NvmeWearTest, WithoutABudgetNothingIsSaid) {
  NvmeWear wear({{.path = "/a"}}, 0);
  EXPECT_FALSE(wear.Add(0, int64_t{1} << 50, Utc(20, 8, 0)));
}

}  // namespace
}  // namespace gemini::server
