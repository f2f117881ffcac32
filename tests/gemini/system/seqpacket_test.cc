// SPDX-License-Identifier: Apache-2.0
#include "gemini/system/seqpacket.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

class SeqpacketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends;
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    near_ = UniqueFd(ends[0]);
    far_ = UniqueFd(ends[1]);
  }

  static void MakeNonBlocking(const UniqueFd& fd) {
    ASSERT_EQ(::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK), 0);
  }

  static int64_t CountOpenFds() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }

  UniqueFd near_;
  UniqueFd far_;
};

TEST_F(SeqpacketTest, MessagesKeepTheirBoundariesAndOrder) {
  const std::string zeros(3, '\0');
  ASSERT_OK(SendPacket(near_.get(), "first", {}));
  ASSERT_OK(SendPacket(near_.get(), zeros, {}));
  ASSERT_OK_AND_ASSIGN(const Packet first, ReceivePacket(far_.get()));
  ASSERT_OK_AND_ASSIGN(const Packet second, ReceivePacket(far_.get()));
  EXPECT_EQ(first.bytes, "first");
  EXPECT_TRUE(first.fds.empty());
  EXPECT_EQ(second.bytes, zeros);
}

TEST_F(SeqpacketTest, TheLargestMessageWithTheMostDescriptorsArrives) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  const std::vector<int> fds(kMaxMessageFds, event.get());
  const std::string bytes(kMaxMessageBytes, 'x');
  ASSERT_OK(SendPacket(near_.get(), bytes, fds));
  ASSERT_OK_AND_ASSIGN(const Packet packet, ReceivePacket(far_.get()));
  EXPECT_EQ(packet.bytes, bytes);
  EXPECT_EQ(packet.fds.size(), fds.size());
}

TEST_F(SeqpacketTest, AReceivedDescriptorIsTheSendersFileAndClosesOnExec) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  ASSERT_OK(SendPacket(near_.get(), "m", {event.get()}));
  ASSERT_OK_AND_ASSIGN(const Packet packet, ReceivePacket(far_.get()));
  ASSERT_EQ(packet.fds.size(), 1u);
  const uint64_t raised = 5;
  ASSERT_EQ(::write(event.get(), &raised, sizeof(raised)), 8);
  uint64_t seen = 0;
  ASSERT_EQ(::read(packet.fds[0].get(), &seen, sizeof(seen)), 8);
  EXPECT_EQ(seen, raised);
  EXPECT_EQ(::fcntl(packet.fds[0].get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(SeqpacketTest, WhatIsTooLargeOrEmptyIsRefusedBeforeItIsSent) {
  MakeNonBlocking(far_);
  EXPECT_THAT(SendPacket(near_.get(), std::string(kMaxMessageBytes + 1, 'x'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65537 bytes")));
  EXPECT_THAT(SendPacket(near_.get(), "m", std::vector<int>(kMaxMessageFds + 1, near_.get())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("254 descriptors")));
  // The receiver could not tell it from a hang-up.
  EXPECT_THAT(SendPacket(near_.get(), "", {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReceivePacket(far_.get()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SeqpacketTest, APeerThatHungUpIsUnavailableToBothCallsAndRaisesNoSignal) {
  ASSERT_OK(SendPacket(near_.get(), "last words", {}));
  near_.Reset();
  ASSERT_OK_AND_ASSIGN(const Packet packet, ReceivePacket(far_.get()));
  EXPECT_EQ(packet.bytes, "last words");
  EXPECT_THAT(ReceivePacket(far_.get()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(SendPacket(far_.get(), "m", {}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SeqpacketTest, APeerThatDiedWithUnreadMessagesIsUnavailable) {
  ASSERT_OK(SendPacket(far_.get(), "never read", {}));
  near_.Reset();
  EXPECT_THAT(ReceivePacket(far_.get()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SeqpacketTest, ANonBlockingSocketReportsAnEmptyAndAFullBuffer) {
  MakeNonBlocking(near_);
  MakeNonBlocking(far_);
  EXPECT_THAT(ReceivePacket(far_.get()), StatusIs(absl::StatusCode::kNotFound));
  const std::string bytes(kMaxMessageBytes, 'x');
  absl::Status status;
  for (int i = 0; i < 1'000 && status.ok(); ++i) status = SendPacket(near_.get(), bytes, {});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("does not read")));
}

TEST_F(SeqpacketTest, APeerThatReadsNoMoreIsUnavailableAndNotAFullBuffer) {
  MakeNonBlocking(near_);
  ASSERT_EQ(::shutdown(far_.get(), SHUT_RD), 0);
  EXPECT_THAT(SendPacket(near_.get(), "m", {}), StatusIs(absl::StatusCode::kUnavailable));
}

// The option is set before the peer connects: also what it sends before the accept is refused.
TEST_F(SeqpacketTest, DescriptorsToASocketThatRefusesThemAreRefusedAtTheSender) {
  if (!RefuseDescriptors(far_.get())) GTEST_SKIP() << "the kernel is older than Linux 6.16";
  EXPECT_THAT(SendPacket(near_.get(), "m", {near_.get()}), ::testing::Not(IsOk()));
  EXPECT_OK(SendPacket(near_.get(), "m", {}));
  EXPECT_OK(SendPacket(far_.get(), "m", {far_.get()}));  // The other direction is another's choice.
}

TEST_F(SeqpacketTest, AReceiverMayGetTheDescriptorsOfAMessageThatIsRefused) {
  const std::string bytes(kMaxMessageBytes + 1, 'x');
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = near_.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ASSERT_GT(::sendmsg(near_.get(), &message, 0), 0);
  Packet packet;
  EXPECT_THAT(ReceivePacketInto(far_.get(), packet), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(packet.fds.size(), 1u);
}

TEST_F(SeqpacketTest, AMessageAboveTheLimitIsRefusedWholeAndTheNextOneArrives) {
  const std::string bytes(kMaxMessageBytes + 1, 'x');
  ASSERT_EQ(::send(near_.get(), bytes.data(), bytes.size(), 0), kMaxMessageBytes + 1);
  ASSERT_OK(SendPacket(near_.get(), "next", {}));
  EXPECT_THAT(ReceivePacket(far_.get()), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(const Packet next, ReceivePacket(far_.get()));
  EXPECT_EQ(next.bytes, "next");
}

TEST_F(SeqpacketTest, DescriptorsOfARefusedMessageAreClosed) {
  const int64_t before = CountOpenFds();
  // A peer that bypasses SendPacket: an empty message with descriptors reads as a hang-up.
  msghdr message = {};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = near_.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ASSERT_EQ(::sendmsg(near_.get(), &message, 0), 0);
  EXPECT_THAT(ReceivePacket(far_.get()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(CountOpenFds(), before);
}

TEST_F(SeqpacketTest, AReceiverWithoutRoomForTheDescriptorsRefusesTheMessage) {
  const int64_t before = CountOpenFds();
  ASSERT_OK(SendPacket(near_.get(), "m", std::vector<int>(8, near_.get())));
  rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  const UniqueFd probe(::dup(near_.get()));  // The lowest free number: two more may be opened.
  rlimit few = old_limit;
  few.rlim_cur = static_cast<rlim_t>(probe.get()) + 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::StatusOr<Packet> packet = ReceivePacket(far_.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_THAT(packet, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("descriptors")));
  EXPECT_EQ(CountOpenFds(), before + 1);
}

TEST_F(SeqpacketTest, ADescriptorThatIsNotOpenIsAnError) {
  EXPECT_THAT(SendPacket(near_.get(), "m", {-1}), ::testing::Not(IsOk()));
}

}  // namespace
}  // namespace gemini
