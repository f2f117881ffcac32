// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA says of the GPUs that it sees.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "trainer/parallel/visible_gpus.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(VisibleGpusNoneTest, ABuildWithoutCudaSaysWhatToDo) {
  EXPECT_THAT(VisibleGpus(), StatusIs(absl::StatusCode::kUnimplemented,
                                      AllOf(HasSubstr("this build has no CUDA"),
                                            HasSubstr("build where CUDA's toolkit is"),
                                            HasSubstr("leave --device out"))));
}

}  // namespace
}  // namespace gemini::trainer
