// SPDX-License-Identifier: Apache-2.0
// Matchers for absl::Status and absl::StatusOr: a test names the error that it expects.
#pragma once
#include <ostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).ok();
}

MATCHER_P(StatusIs, code, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).code() == code;
}

MATCHER_P2(StatusIs, code, message_matcher, "") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).code() == code &&
         ::testing::Matches(message_matcher)(std::string(StatusOf(arg).message()));
}

MATCHER_P(IsOkAndHolds, value_matcher, "") {
  *result_listener << arg.status();
  return arg.ok() && ::testing::ExplainMatchResult(value_matcher, *arg, result_listener);
}

}  // namespace gemini

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::gemini::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::gemini::IsOk())

#define GEMINI_TEST_CONCAT_INNER(a, b) a##b
#define GEMINI_TEST_CONCAT(a, b) GEMINI_TEST_CONCAT_INNER(a, b)
// Declares or assigns `target` from a StatusOr, or ends the test.
#define ASSERT_OK_AND_ASSIGN(target, expression) \
  ASSERT_OK_AND_ASSIGN_INNER(GEMINI_TEST_CONCAT(test_result_, __LINE__), target, expression)
#define ASSERT_OK_AND_ASSIGN_INNER(result, target, expression) \
  auto result = (expression);                                  \
  ASSERT_OK(result);                                           \
  target = *std::move(result)
