// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_report.h"

#include <string>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(RankReportTest, IsReadAsItWasWritten) {
  for (const int64_t awaited :
       {RankReport::kCollective, RankReport::kNone, int64_t{0}, int64_t{3}}) {
    const RankReport report = {
        .beat = 7, .awaited = awaited, .num_messages = int64_t{1} << 40, .num_issued = {5, 0, 9}};
    EXPECT_EQ(ParseRankReport(ToText(report), /*num_ranks=*/4), report);
  }
  EXPECT_EQ(ParseRankReport(ToText({.beat = 1}), 1), RankReport{.beat = 1});
}

TEST(RankReportTest, WhatNoRankWritesIsAReportOfNothing) {
  for (const std::string& text :
       {std::string(), std::string("1"), std::string("1 0"), std::string("1 4 2 3"),
        std::string("1 -3 2 3"), std::string("1 0 x 3"), std::string("1 0 2 3 "),
        std::string("1 0 2 99999999999999999999"), std::string("1 0 2 \0", 8),
        "1 0 2" + std::string(5000, ' '), std::string("\xff\xfe\x00\x80", 4)}) {
    EXPECT_EQ(ParseRankReport(text, 4), RankReport()) << text.substr(0, 40);
  }
}

}  // namespace
}  // namespace gemini::trainer
