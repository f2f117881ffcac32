// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/host_room.h"

#include <limits>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kAdvice[] = "ask for less";

TEST(HostRoomTest, WhoWouldTakeTheMachineAbove95PercentIsRefusedWithTheNumbers) {
  const HostMemory memory = {.total_bytes = 100 * kGiB, .available_bytes = 30 * kGiB};
  EXPECT_OK(CheckRoomIn(memory, 25 * kGiB - kMiB, 0, "space s", kAdvice));
  EXPECT_THAT(CheckRoomIn(memory, 25 * kGiB + kMiB, 0, "space s", kAdvice),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("space s needs 25"),
                             HasSubstr("30 GiB of 100 GiB available now, and 5 GiB of them stay"),
                             HasSubstr("or jobs, ask for less"))));
  EXPECT_OK(CheckRoomIn(memory, 15 * kGiB - kMiB, 10 * kGiB, "space s", kAdvice));
  EXPECT_THAT(
      CheckRoomIn(memory, 15 * kGiB + kMiB, 10 * kGiB, "space s", kAdvice),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("space s needs 15"), HasSubstr("10 GiB of them are jobs' DEVICE"))));
  // Above it already: even the smallest is too much.
  EXPECT_OK(
      CheckRoomIn({.total_bytes = 100 * kGiB, .available_bytes = 6 * kGiB}, kMiB, 0, "s", kAdvice));
  EXPECT_THAT(
      CheckRoomIn({.total_bytes = 100 * kGiB, .available_bytes = 4 * kGiB}, kMiB, 0, "s", kAdvice),
      StatusIs(absl::StatusCode::kResourceExhausted));
}

// Nothing is asked of a full machine: not refused.
TEST(HostRoomTest, NothingNeedsNoRoom) {
  EXPECT_OK(CheckRoomIn({.total_bytes = 100 * kGiB, .available_bytes = 0}, 0, kGiB, "s", kAdvice));
}

// Of 20 GiB a control group keeps 1 GiB free, of 100 GiB the machine keeps 5.
TEST(HostRoomTest, TheTighterOfMachineAndGroupCountsForWhatIsChargedToTheGroup) {
  const HostMemories memories = {
      .machine = HostMemory{.total_bytes = 100 * kGiB, .available_bytes = 60 * kGiB},
      .tightest = HostMemory{.total_bytes = 20 * kGiB, .available_bytes = 15 * kGiB}};
  const PromisedDevice promised = {.bytes = 10 * kGiB, .charged_here_bytes = 3 * kGiB};
  const auto room = [&](const PromisedDevice& of, bool charged_here) {
    return static_cast<double>(HostRoom(memories, of, charged_here)) / kGiB;
  };
  EXPECT_NEAR(room(promised, /*charged_here=*/false), 45, 1e-6);
  EXPECT_NEAR(room(promised, /*charged_here=*/true), 11, 1e-6);
  EXPECT_NEAR(room({.bytes = 58 * kGiB}, /*charged_here=*/true), -3, 1e-6);
  const auto check = [&](int64_t size_bytes, bool charged_here) {
    return CheckHostRoom(memories, size_bytes, promised, charged_here, "s", kAdvice);
  };
  EXPECT_OK(check(11 * kGiB - kMiB, true));
  EXPECT_THAT(check(11 * kGiB + kMiB, true),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("3 GiB of them are jobs'")));
  EXPECT_OK(check(45 * kGiB - kMiB, false));
  EXPECT_THAT(check(45 * kGiB + kMiB, false), StatusIs(absl::StatusCode::kResourceExhausted,
                                                       HasSubstr("10 GiB of them are jobs'")));
}

TEST(HostRoomTest, WhatCannotBeReadLimitsNothing) {
  EXPECT_EQ(HostRoom({}, {.bytes = kGiB}, true), std::numeric_limits<int64_t>::max());
  EXPECT_OK(CheckHostRoom({}, 1000 * kGiB, {}, true, "s", kAdvice));
  const HostMemories memories = ReadHostMemories();
  ASSERT_TRUE(memories.machine.has_value() && memories.tightest.has_value());
  EXPECT_LE(memories.tightest->available_bytes, memories.tightest->total_bytes);
  EXPECT_GT(memories.machine->total_bytes, 16 * kMiB);
}

}  // namespace
}  // namespace gemini::server
