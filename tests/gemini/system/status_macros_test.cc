// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/status_macros.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

absl::Status FirstErrorOf(const absl::Status& first, const absl::Status& second, int* reached) {
  *reached = 0;
  GEMINI_RETURN_IF_ERROR(first);
  *reached = 1;
  GEMINI_RETURN_IF_ERROR(second);
  *reached = 2;
  return absl::OkStatus();
}

absl::StatusOr<int> SumOf(absl::StatusOr<std::unique_ptr<int>> first, absl::StatusOr<int> second) {
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<int> pointer, std::move(first));
  int number = 0;
  GEMINI_ASSIGN_OR_RETURN(number, second);
  return *pointer + number;
}

TEST(StatusMacrosTest, TheFirstErrorEndsTheFunction) {
  int reached = 0;
  EXPECT_OK(FirstErrorOf(absl::OkStatus(), absl::OkStatus(), &reached));
  EXPECT_EQ(reached, 2);
  EXPECT_THAT(FirstErrorOf(absl::OkStatus(), absl::AbortedError("b"), &reached),
              StatusIs(absl::StatusCode::kAborted, "b"));
  EXPECT_EQ(reached, 1);
  EXPECT_THAT(FirstErrorOf(absl::DataLossError("a"), absl::AbortedError("b"), &reached),
              StatusIs(absl::StatusCode::kDataLoss, "a"));
  EXPECT_EQ(reached, 0);
}

TEST(StatusMacrosTest, ValuesAreMovedOutAndErrorsReturned) {
  EXPECT_THAT(SumOf(std::make_unique<int>(40), 2), IsOkAndHolds(42));
  EXPECT_THAT(SumOf(std::make_unique<int>(40), absl::NotFoundError("x")),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(SumOf(absl::InternalError("y"), 2), StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace gemini
