// SPDX-License-Identifier: Apache-2.0
#include "client/wire/reply_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

Reply ReplyWith(absl::string_view bytes) {
  UniqueFd fd(::memfd_create("reply", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  Reply reply;
  reply.fds.push_back(std::move(fd));
  return reply;
}

TEST(ReplyMemoryTest, TheBytesAreRead) {
  EXPECT_THAT(ReadReplyMemory(ReplyWith("plan"), 4), IsOkAndHolds("plan"));
}

// As the server does with what was not read in time.
TEST(ReplyMemoryTest, WhatTheServerTookBackCanBeAskedForAgain) {
  const Reply reply = ReplyWith("plan");
  ASSERT_EQ(::ftruncate(reply.fds[0].get(), 0), 0);
  EXPECT_THAT(ReadReplyMemory(reply, 4),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("ask again")));
}

TEST(ReplyMemoryTest, AServerThatLiesAboutTheSizeIsNotBelieved) {
  for (const int64_t size_bytes : {-1, 0, 3, 5}) {
    EXPECT_THAT(ReadReplyMemory(ReplyWith("plan"), size_bytes),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(ReadReplyMemory(Reply(), 4), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::client
