// SPDX-License-Identifier: Apache-2.0
#include "client/copy/cuda_status.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

TEST(CudaStatusTest, AnErrorHasItsCodeItsNameAndWhatWasTried) {
  EXPECT_OK(CudaRuntimeStatus(cudaSuccess, "a copy"));
  EXPECT_THAT(CudaRuntimeStatus(cudaErrorMemoryAllocation, "cudaMalloc"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("cudaMalloc: cudaErrorMemoryAllocation: out of memory")));
  EXPECT_THAT(CudaRuntimeStatus(cudaErrorNoDevice, "x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("x: cudaErrorNoDevice")));
  EXPECT_THAT(
      CudaRuntimeStatus(cudaErrorInsufficientDriver, "x"),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("x: cudaErrorInsufficientDriver")));
  EXPECT_THAT(CudaRuntimeStatus(cudaErrorIllegalAddress, "x"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("x: cudaErrorIllegalAddress")));
}

}  // namespace
}  // namespace gemini::client
