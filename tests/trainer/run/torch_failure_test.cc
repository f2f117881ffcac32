// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/torch_failure.h"

#include <exception>
#include <new>
#include <stdexcept>

#include "c10/util/Exception.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

// Catches what is thrown as a run does.
template <typename Throw>
absl::Status StatusOf(const Throw& throws) {
  try {
    throws();
  } catch (const std::exception& error) {
    return StatusOfFailure(error, "a step");
  }
  return absl::OkStatus();
}

TEST(TorchFailureTest, MemoryIsToldFromOtherFailures) {
  for (const absl::Status& status :
       {StatusOf([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "7 bytes"); }),
        StatusOf([] { throw std::bad_alloc(); })}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory in a step: ")));
    EXPECT_TRUE(OperatorsHadNoMemory(status));
  }
  for (const absl::Status& status : {StatusOf([] { TORCH_CHECK(false, "shapes"); }),
                                     StatusOf([] { throw std::runtime_error("shapes"); })}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, "a step failed: shapes"));
    EXPECT_FALSE(OperatorsHadNoMemory(status));
  }
}

TEST(TorchFailureTest, OtherLacksOfMemoryAreNotOfOperators) {
  EXPECT_FALSE(OperatorsHadNoMemory(absl::ResourceExhaustedError("HOST is full")));
  EXPECT_FALSE(OperatorsHadNoMemory(absl::OkStatus()));
}

}  // namespace
}  // namespace gemini::trainer
