// SPDX-License-Identifier: Apache-2.0
#include "gemini/device_shortage.h"

#include <optional>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

DeviceNeed Need() {
  return {.who = "aten::mm", .chunk_bytes = kMiB, .non_model_bytes = 2 * kMiB + 1};
}

TEST(DeviceShortageTest, SaysWhoNeedsWhatAndHowMuchWillDo) {
  EXPECT_THAT(DeviceTooSmall(Need(), kMiB),
              StatusIs(kExhausted,
                       "DEVICE is 2 MiB too small: aten::mm needs 1 MiB of chunks beside "
                       "2 MiB of activations and temporaries, 3 MiB (3145729 bytes) "
                       "together; the budget is 1 MiB: raise --device-memory to at "
                       "least 3.1 MiB, or lower --batch or --sequence"));
}

TEST(DeviceShortageTest, ABudgetThatIsSplitIsNotSaidToBeEnough) {
  EXPECT_THAT(DeviceTooSmall(Need(), 8 * kMiB),
              StatusIs(kExhausted, AllOf(HasSubstr("pinned chunks split its room"),
                                         Not(HasSubstr("at least")))));
}

TEST(DeviceShortageTest, HowMuchWillDoIsANumberThatComesAlong) {
  EXPECT_EQ(LeastDeviceBytes(DeviceTooSmall(Need(), kMiB)), 3 * kMiB + 1);
  EXPECT_EQ(LeastDeviceBytes(DeviceTooSmall(Need(), 8 * kMiB)), std::nullopt);
  absl::Status passed_on = absl::ResourceExhaustedError("rank 3: DEVICE is too small");
  EXPECT_EQ(LeastDeviceBytes(passed_on), std::nullopt);
  SetLeastDeviceBytes(7, passed_on);
  EXPECT_EQ(LeastDeviceBytes(passed_on), 7);
  EXPECT_EQ(LeastDeviceBytes(absl::OkStatus()), std::nullopt);
}

}  // namespace
}  // namespace gemini
