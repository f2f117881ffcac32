// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/cuda_driver.h"

#include <dlfcn.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda_driver.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

bool HasDriver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) ::dlclose(library);
  return library != nullptr;
}

TEST(CudaDriverTest, WithoutADriverTheAnswerSaysWhatToInstall) {
  if (HasDriver()) GTEST_SKIP() << "this machine has a driver";
  // Twice, for the runtime keeps an error of its own.
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(CudaDriver::Find(),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no NVIDIA driver")));
    EXPECT_THAT(FindCudaFunction("cuMemCreate", 10020),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("nvidia-smi")));
  }
}

TEST(CudaDriverTest, AFunctionThatNoDriverHasIsNamed) {
  if (!CudaDriver::Find().ok()) GTEST_SKIP() << CudaDriver::Find().status();
  EXPECT_THAT(
      FindCudaFunction("cuNoSuchFunction", 10020),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cuNoSuchFunction of CUDA 10.2")));
}

TEST(CudaDriverTest, AnErrorHasItsCodeItsNameAndWhatWasTried) {
  const FakeCudaDriver fake(/*memory_bytes=*/1 << 20, /*granularity_bytes=*/1 << 16);
  const CudaDriver& driver = fake.driver();
  EXPECT_OK(CudaStatus(driver, CUDA_SUCCESS, "cuMemCreate"));
  EXPECT_THAT(CudaStatus(driver, CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY")));
  EXPECT_THAT(CudaStatus(driver, CUDA_ERROR_NO_DEVICE, "x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("x: ")));
  EXPECT_THAT(CudaStatus(driver, CUDA_ERROR_NOT_PERMITTED, "x"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("x: ")));
  EXPECT_THAT(CudaStatus(driver, CUDA_ERROR_UNKNOWN, "x"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("x: CUDA_ERROR_UNKNOWN")));
  // One of which the driver knows no name.
  EXPECT_THAT(CudaStatus(driver, static_cast<CUresult>(1000), "x"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("x: CUDA error 1000")));
}

}  // namespace
}  // namespace gemini
