// SPDX-License-Identifier: Apache-2.0
#include "gemini/device_name.h"

#include <optional>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

TEST(DeviceNameTest, AGpuHasANumberAndTheCpuNone) {
  EXPECT_THAT(ParseDeviceName("cuda:0"), IsOkAndHolds(std::optional<int>(0)));
  EXPECT_THAT(ParseDeviceName("cuda"), IsOkAndHolds(std::optional<int>(0)));
  EXPECT_THAT(ParseDeviceName("cuda:12"), IsOkAndHolds(std::optional<int>(12)));
  for (const char* name : {"", "cpu", "host"}) {
    EXPECT_THAT(ParseDeviceName(name), IsOkAndHolds(std::optional<int>())) << name;
  }
}

TEST(DeviceNameTest, AnythingElseIsRefusedByName) {
  for (const char* name :
       {"gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999", "CUDA:0", "cuda0"}) {
    EXPECT_THAT(ParseDeviceName(name),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)))
        << name;
  }
}

}  // namespace
}  // namespace gemini
