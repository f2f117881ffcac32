// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/decay_exemptions.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

TEST(DecayExemptionsTest, NamesAreExemptByAnyOfThePatterns) {
  ASSERT_OK_AND_ASSIGN(const DecayExemptions exemptions,
                       DecayExemptions::Parse("*.bias, transformer.wte.weight"));
  EXPECT_TRUE(exemptions.Exempts("transformer.h.0.ln_1.bias"));
  EXPECT_TRUE(exemptions.Exempts("transformer.wte.weight"));
  EXPECT_FALSE(exemptions.Exempts("transformer.h.0.ln_1.weight"));
  EXPECT_FALSE(exemptions.Exempts("bias"));
}

TEST(DecayExemptionsTest, NothingIsExemptWithoutAPattern) {
  ASSERT_OK_AND_ASSIGN(const DecayExemptions none, DecayExemptions::Parse(""));
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.Exempts(""));
  EXPECT_OK(none.CheckAgainst({}));
}

TEST(DecayExemptionsTest, APatternThatIsEmptyOrMatchesNothingIsRefused) {
  for (const char* text : {",", "*.bias,", "*.bias, ,x"}) {
    EXPECT_THAT(DecayExemptions::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)))
        << text;
  }
  const std::vector<std::string> names = {"wte.weight", "ln.bias"};
  ASSERT_OK_AND_ASSIGN(const DecayExemptions typo, DecayExemptions::Parse("*.bias,*.bais"));
  EXPECT_THAT(
      typo.CheckAgainst(names),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("'*.bais'; the first one is called wte")));
  ASSERT_OK_AND_ASSIGN(const DecayExemptions good, DecayExemptions::Parse("*.bias,wte*"));
  EXPECT_OK(good.CheckAgainst(names));
}

}  // namespace
}  // namespace gemini::trainer
