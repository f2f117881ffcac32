// SPDX-License-Identifier: Apache-2.0
#include "server/reply_wire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/system/seqpacket.h"
#include "gemini/wire_generated.h"
#include "gtest/gtest.h"

namespace gemini::server {
namespace {

StatusAnswer StatusOf(int num_spaces) {
  StatusAnswer status;
  for (int i = 0; i < num_spaces; ++i) {
    SpaceStatusAnswer& space = status.spaces.emplace_back();
    space.space = static_cast<uint64_t>(i);
    space.name = absl::StrCat("space-", i);
  }
  return status;
}

absl::Duration TimeToEncode(const StatusAnswer& status) {
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 9; ++i) {
    const absl::Time start = absl::Now();
    EXPECT_LE(static_cast<int64_t>(EncodeStatusReply(1, status).size()), kMaxMessageBytes);
    least = std::min(least, absl::Now() - start);
  }
  return least;
}

// As many as all sessions may have: what does not fit the message costs next to nothing.
TEST(ReplyWireTest, AStatusOfVeryManySpacesIsEncodedAsFastAsOneOfWhatFits) {
  const absl::Duration of_many = TimeToEncode(StatusOf(256 * 64));
  const absl::Duration of_some = TimeToEncode(StatusOf(512));
  EXPECT_LT(of_many, 4 * of_some);
  const std::string bytes = EncodeStatusReply(1, StatusOf(256 * 64));
  EXPECT_GE(wire::GetMessage(bytes.data())->body_as_StatusReply()->spaces()->size(), 100);
}

}  // namespace
}  // namespace gemini::server
