// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/batch_loss.h"

#include <cmath>
#include <optional>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

TEST(BatchLossTest, ValuesAreMeansAndTheTotalIsThatOfTheGraph) {
  const BatchLoss loss = {.sum = torch::tensor(6.f),
                          .count = 4,
                          .router = torch::tensor(3.f),
                          .router_coefficient = 0.5};
  const LossValues values = loss.Values();
  EXPECT_EQ(values.of_labels, 1.5);
  EXPECT_EQ(values.router, 3);
  EXPECT_EQ(values.total, 3);
  EXPECT_EQ(values.labels, 4);
  EXPECT_FALSE(values.hits.has_value());
  EXPECT_EQ(loss.Total().item<double>(), 3);
  const BatchLoss plain = {.sum = torch::tensor(6.f), .count = 4};
  EXPECT_EQ(plain.Values().total, 1.5);
  EXPECT_EQ(plain.Values().router, std::nullopt);
  EXPECT_EQ(plain.Total().item<double>(), 1.5);
}

TEST(BatchLossTest, HitsAreReadWithOrWithoutThoseAmongFive) {
  BatchLoss loss = {
      .sum = torch::tensor(6.f), .count = 4, .hits = torch::tensor({3}, torch::kLong)};
  ASSERT_TRUE(loss.Values().hits.has_value());
  EXPECT_EQ(loss.Values().hits->first, 3);
  EXPECT_FALSE(loss.Values().hits->has_five);
  loss.hits = torch::tensor({1, 4}, torch::kLong);
  EXPECT_EQ(loss.Values().hits->first, 1);
  EXPECT_EQ(loss.Values().hits->among_five, 4);
  EXPECT_TRUE(loss.Values().hits->has_five);
}

TEST(BatchLossTest, WithoutALabelTheMeanIsNaN) {
  const BatchLoss loss = {.sum = torch::tensor(0.f), .count = 0};
  EXPECT_TRUE(std::isnan(loss.Values().total));
  EXPECT_TRUE(std::isnan(loss.Total().item<double>()));
}

TEST(BatchLossTest, BackwardMultipliesEachPartByItsFactor) {
  const LossFactors factors = LossFactors::OfStep(/*scale=*/8, /*labels=*/4, /*micro_batches=*/2);
  EXPECT_EQ(factors.label, 2);
  EXPECT_EQ(factors.router, 4);
  const torch::Tensor x = torch::tensor(5.f, torch::requires_grad());
  const torch::Tensor y = torch::tensor(7.f, torch::requires_grad());
  const BatchLoss loss = {.sum = 3 * x, .count = 1, .router = 2 * y, .router_coefficient = 0.25};
  loss.Backward(factors);
  EXPECT_EQ(x.grad().item<double>(), 3 * 2);
  EXPECT_EQ(y.grad().item<double>(), 2 * 0.25 * 4);
  const BatchLoss plain = {.sum = 3 * x, .count = 1};
  plain.Backward(factors);  // It is added.
  EXPECT_EQ(x.grad().item<double>(), 12);
}

}  // namespace
}  // namespace gemini::trainer
