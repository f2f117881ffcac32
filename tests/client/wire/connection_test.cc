// SPDX-License-Identifier: Apache-2.0
// The peers here are those that a server never is: silent, gone, or talking nonsense. What a server
// says is in session_test.
#include "client/wire/connection.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gemini/system/seqpacket.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    connection_ = std::make_unique<Connection>(UniqueFd(ends[0]));
    peer_ = UniqueFd(ends[1]);
  }

  absl::StatusOr<Reply> Ask(absl::Duration timeout = Connection::kReplyTimeout) {
    return connection_->Call(
        wire::Body::GetStatus,
        [](flatbuffers::FlatBufferBuilder& builder) {
          return wire::CreateGetStatus(builder).Union();
        },
        wire::Body::Done, timeout);
  }

  // Sends an answer whose body is built by `body` for request `id`, before it is asked.
  template <typename Build>
  void Answer(uint64_t id, wire::Body type, Build body) {
    flatbuffers::FlatBufferBuilder builder;
    const flatbuffers::Offset<void> offset = body(builder);
    wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, id, type, offset));
    ASSERT_OK(SendPacket(
        peer_.get(), {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()},
        {}));
  }
  void AnswerDone(uint64_t id) {
    Answer(id, wire::Body::Done, [](flatbuffers::FlatBufferBuilder& builder) {
      return wire::CreateDone(builder).Union();
    });
  }

  std::unique_ptr<Connection> connection_;
  UniqueFd peer_;
};

TEST_F(ConnectionTest, ARefusalBecomesItsStatusWithoutControlCharacters) {
  Answer(1, wire::Body::Refusal, [](flatbuffers::FlatBufferBuilder& builder) {
    return wire::CreateRefusal(builder, static_cast<int>(absl::StatusCode::kResourceExhausted),
                               builder.CreateString("no\x1b[31m room"))
        .Union();
  });
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no?[31m room")));
  AnswerDone(2);
  EXPECT_OK(Ask());  // A refusal does not end the connection.
}

TEST_F(ConnectionTest, AHangUpIsUnavailableAtOnce) {
  EXPECT_OK(connection_->CheckPeer());
  const absl::Time start = absl::Now();
  std::thread peer([this] {
    EXPECT_OK(ReceivePacket(peer_.get()));
    peer_.Reset();
  });
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kUnavailable));
  peer.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_THAT(connection_->CheckPeer(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("resume")));
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ConnectionTest, AnAnswerThatComesLateIsSkippedAndTheNextOneTaken) {
  EXPECT_THAT(Ask(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("did not answer within 50ms")));
  // Nobody waits once more for a server that is behind: this is refused and not sent.
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("an earlier request")));
  EXPECT_EQ(connection_->num_given_up(), 2);
  AnswerDone(1);
  AnswerDone(2);
  ASSERT_OK_AND_ASSIGN(const Reply reply, Ask());
  EXPECT_EQ(wire::GetMessage(reply.bytes.data())->request_id(), 2u);
  EXPECT_EQ(connection_->num_given_up(), 2);
}

TEST_F(ConnectionTest, ASecondAnswerToARequestIsRefused) {
  EXPECT_THAT(Ask(absl::Milliseconds(50)), StatusIs(absl::StatusCode::kUnavailable));
  AnswerDone(1);
  AnswerDone(1);
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request 1")));
  AnswerDone(2);
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kInvalidArgument));  // And stays so.
}

TEST_F(ConnectionTest, NonsenseIsRefused) {
  ASSERT_OK(SendPacket(peer_.get(), "GMN1 is not enough", {}));
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ConnectionTest, AnAnswerToAnotherRequestIsRefused) {
  AnswerDone(77);
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request 77")));
}

TEST_F(ConnectionTest, AnAnswerOfAnotherTypeIsRefused) {
  Answer(1, wire::Body::SlabsReply, [](flatbuffers::FlatBufferBuilder& builder) {
    return wire::CreateSlabsReply(builder, 3).Union();
  });
  EXPECT_THAT(Ask(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SlabsReply")));
}

TEST(ConnectTest, APathThatDoesNotFitIsRefused) {
  EXPECT_THAT(Connection::Connect(std::string(200, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107")));
  EXPECT_THAT(Connection::Connect(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ConnectTest, NoDaemonSaysWhatToDo) {
  const std::string path = ::testing::TempDir() + "/gemini-nobody.sock";
  EXPECT_THAT(Connection::Connect(path),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("is geminid running")));
}

TEST(ConnectTest, ASocketThatNobodyListensOnIsUnavailable) {
  const std::string path = ::testing::TempDir() + "/gemini-dead-" + std::to_string(::getpid());
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  listener.Reset();
  EXPECT_THAT(Connection::Connect(path), StatusIs(absl::StatusCode::kUnavailable));
  ::unlink(path.c_str());
}

// A listening socket, and the process that made it: whoever connects sees that one's uid.
class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/listener-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    ::chmod(directory_.c_str(), 0777);
    path_ = directory_ + "/socket";
  }
  void TearDown() override {
    stop_.Reset();
    if (listener_ > 0) {
      EXPECT_EQ(::waitpid(listener_, nullptr, 0), listener_);
    }
    std::filesystem::remove_all(directory_);
  }

  // Has a child of this uid listen on path_ until the test ends.
  void ListenAs(uid_t uid) {
    int ready[2], stop[2];
    ASSERT_EQ(::pipe(ready), 0);
    ASSERT_EQ(::pipe(stop), 0);
    listener_ = ::fork();
    ASSERT_GE(listener_, 0);
    if (listener_ == 0) {
      ::close(stop[1]);
      char byte = 0;
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
      if (::setresuid(uid, uid, uid) != 0 ||
          ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
          ::chmod(path_.c_str(), 0777) != 0 || ::listen(socket, 4) != 0 ||
          ::write(ready[1], &byte, 1) != 1) {
        ::_exit(1);
      }
      (void)!::read(stop[0], &byte, 1);
      ::_exit(0);
    }
    ::close(ready[1]);
    ::close(stop[0]);
    stop_ = UniqueFd(stop[1]);
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }

  std::string directory_;
  std::string path_;
  UniqueFd stop_;
  pid_t listener_ = 0;
};

TEST_F(ListenerTest, AServerOfThisUserIsConnectedTo) {
  ListenAs(::geteuid());
  EXPECT_OK(Connection::Connect(path_));
}

// It would be handed the tensors.
TEST_F(ListenerTest, AServerOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  ListenAs(65534);
  EXPECT_THAT(Connection::Connect(path_),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       ::testing::AllOf(HasSubstr("65534"), HasSubstr("uid 0"),
                                        HasSubstr("runtime directory"))));
}

// A daemon that root runs for all serves others, too.
TEST_F(ListenerTest, AServerOfRootIsConnectedToByOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can listen as root";
  ListenAs(0);
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    ::_exit(Connection::Connect(path_).ok() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gemini::client
