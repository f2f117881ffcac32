// SPDX-License-Identifier: Apache-2.0
#include "tools/published_claims.h"

#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"

namespace gemini::tools {
namespace {

using ::testing::HasSubstr;

TEST(PublishedClaimsTest, AllHold) {
  const std::vector<PublishedClaim> claims = CheckPublishedClaims();
  EXPECT_GE(claims.size(), 17);
  for (const PublishedClaim& claim : claims) {
    EXPECT_TRUE(claim.holds) << claim.what << ": theirs " << claim.theirs << ", ours "
                             << claim.ours;
  }
}

TEST(PublishedClaimsTest, TheDocumentHasTheTable) {
  std::ifstream file(GEMINI_SOURCE_DIR "/docs/scaling.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string table = ClaimsTable(CheckPublishedClaims());
  EXPECT_THAT(text, HasSubstr(table)) << "put into docs/scaling.md what tools/claims prints";
}

TEST(PublishedClaimsTest, WhatDoesNotHoldIsSaidSo) {
  const std::vector<PublishedClaim> claims = {{"a", "b", "c", "1", "2", false, "d"}};
  EXPECT_THAT(ClaimsTable(claims), HasSubstr("| a | b | c | 1 | 2 | NO | d |\n"));
}

}  // namespace
}  // namespace gemini::tools
