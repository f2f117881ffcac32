// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/row_documents.h"

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

TEST(RowDocumentsTest, PositionsCountFromTheBeginningOfEachDocument) {
  const RowDocuments documents = {{{3, 1, 2}, {}, {6}, {4}}};
  EXPECT_TRUE(torch::equal(
      documents.Positions(6),
      torch::tensor(
          {{0, 1, 2, 0, 0, 1}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 0, 1}},
          torch::kInt64)));
  EXPECT_EQ(documents.longest(), 6);
  EXPECT_EQ(RowDocuments().longest(), 0);
}

TEST(RowDocumentsTest, SomeRowsKeepTheirDocuments) {
  const RowDocuments documents = {{{3}, {1, 2}, {2}}};
  EXPECT_EQ(documents.RowsFrom(1, 2).lengths, (std::vector<std::vector<int64_t>>{{1, 2}, {2}}));
}

TEST(RowDocumentsTest, DocumentsThatARowCannotHoldAreRefused) {
  EXPECT_THROW(RowDocuments({{{3, 4}}}).Positions(6), c10::Error);
  EXPECT_THROW(RowDocuments({{{3, 0}}}).Positions(6), c10::Error);
}

}  // namespace
}  // namespace gemini::trainer
