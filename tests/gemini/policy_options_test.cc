// SPDX-License-Identifier: Apache-2.0
#include "gemini/policy_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PolicyOptionsTest, EachNameIsThatOfItsKind) {
  for (const PolicyKind kind : {PolicyKind::kAuto, PolicyKind::kStatic, PolicyKind::kCpu,
                                PolicyKind::kCuda, PolicyKind::kOnline}) {
    EXPECT_THAT(ParsePolicyKind(PolicyKindName(kind)), IsOkAndHolds(kind));
  }
  EXPECT_THAT(ParsePolicyKind("static"), IsOkAndHolds(PolicyKind::kStatic));
}

TEST(PolicyOptionsTest, AnotherNameIsRefusedWithTheNearest) {
  EXPECT_THAT(ParsePolicyKind("statik"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'statik'"), HasSubstr("did you mean 'static'"))));
  EXPECT_THAT(ParsePolicyKind("Auto "), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParsePolicyKind(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini
