// SPDX-License-Identifier: Apache-2.0
#include "gemini/optimizer_kind.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini {
namespace {

TEST(OptimizerKindTest, EveryNameNamesItsKindAndNothingElseDoes) {
  for (const OptimizerKind kind : kAllOptimizerKinds) {
    EXPECT_EQ(OptimizerKindOf(OptimizerKindName(kind)), kind);
  }
  EXPECT_EQ(OptimizerKindOf("lamb"), OptimizerKind::kLamb);
  EXPECT_EQ(OptimizerKindOf("AdamW"), std::nullopt);
  EXPECT_EQ(OptimizerKindOf(""), std::nullopt);
}

TEST(OptimizerKindTest, LayerWiseKindsAreThoseOfYouEtAl) {
  EXPECT_TRUE(IsLayerWise(OptimizerKind::kLamb));
  EXPECT_TRUE(IsLayerWise(OptimizerKind::kLars));
  EXPECT_FALSE(IsLayerWise(OptimizerKind::kAdamW));
  EXPECT_FALSE(HasSecondMoment(OptimizerKind::kSgd));
  EXPECT_TRUE(HasSecondMoment(OptimizerKind::kLamb));
}

}  // namespace
}  // namespace gemini
