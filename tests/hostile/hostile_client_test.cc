// SPDX-License-Identifier: Apache-2.0
// What a peer may send, keep back or scribble without harming the server or its other clients.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/protocol.h"
#include "server/embedded_server.h"
#include "tests/server/traces.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

class HostileClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/hostile-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = 8 * kMiB;
    options.capacity_bytes[Tier::kHost] = 32 * kMiB;
    options.nvme_directories = {{directory_, 8 * kMiB}};
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  WireClient Raw() { return WireClient(*server_->Connect()); }
  WireClient Connect(absl::string_view label) {
    WireClient client = Raw();
    EXPECT_OK(client.Hello(label));
    return client;
  }
  // The server still serves somebody else.
  void ExpectAlive() {
    WireClient client = Raw();
    ASSERT_OK(client.Hello("honest", wire::Role::kObserver));
    EXPECT_OK(client.GetStatus());
    EXPECT_OK(client.CloseSession());
  }
  static void ExpectHangUp(WireClient& client) {
    EXPECT_THAT(client.Receive(), StatusIs(absl::StatusCode::kUnavailable));
  }
  // CPU time that the server's thread takes within `interval`.
  absl::Duration CpuTimeOver(absl::Duration interval) const {
    const absl::Duration before = ServerCpuTime();
    ::poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(interval)));
    return ServerCpuTime() - before;
  }
  static absl::Duration ServerCpuTime() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (name != "gemini-server") continue;
      const auto tid = static_cast<uint32_t>(std::stoul(task.path().filename()));
      timespec used = {};
      // The kernel's clock of one thread: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED.
      EXPECT_EQ(::clock_gettime(static_cast<clockid_t>(~tid << 3 | 6), &used), 0);
      return absl::DurationFromTimespec(used);
    }
    ADD_FAILURE() << "no server thread";
    return absl::ZeroDuration();
  }
  static std::string HelloBytes(absl::string_view label) {
    flatbuffers::FlatBufferBuilder builder;
    const auto build = builder.CreateString("b");
    const auto text = builder.CreateString(label.data(), label.size());
    const auto body =
        wire::CreateHello(builder, kProtocolVersion, build, wire::Role::kTrainer, text);
    wire::FinishMessageBuffer(builder,
                              wire::CreateMessage(builder, 1, wire::Body::Hello, body.Union()));
    return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                       builder.GetSize());
  }

  std::string directory_;
  std::unique_ptr<EmbeddedServer> server_;
};

TEST_F(HostileClientTest, GarbageClosesItsOwnConnectionOnly) {
  for (const std::string& bytes : {std::string("x"), std::string(4096, '\xff'),
                                   std::string(64 * 1024, 'a'), std::string("\0\0\0\0GMN1", 8)}) {
    WireClient client = Raw();
    ASSERT_OK(client.SendRaw(bytes));
    ExpectHangUp(client);
  }
  ExpectAlive();
}

TEST_F(HostileClientTest, AHelloOver4KiBOrOfAnotherVersionOrWithoutARoleIsRefused) {
  WireClient big = Raw();
  ASSERT_OK(big.SendRaw(HelloBytes(std::string(4200, 'a'))));
  ExpectHangUp(big);
  WireClient other = Raw();
  EXPECT_THAT(other.Hello("new", wire::Role::kTrainer, 99),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(absl::StrCat("speaks protocol ", kProtocolVersion)),
                             HasSubstr("you speak 99"))));
  ExpectHangUp(other);
  WireClient roleless = Raw();
  EXPECT_THAT(roleless.Hello("?", wire::Role::kUnknown),
              StatusIs(absl::StatusCode::kInvalidArgument));
  WireClient early = Raw();
  EXPECT_THAT(early.GetStatus(), StatusIs(absl::StatusCode::kFailedPrecondition));
  ExpectHangUp(early);
}

TEST_F(HostileClientTest, APeerThatSaysNothingIsClosedAfterTheHelloTimeout) {
  WireClient silent = Raw();
  const absl::Time start = absl::Now();
  ExpectHangUp(silent);
  EXPECT_GE(absl::Now() - start, kHelloTimeout - absl::Milliseconds(100));
}

// Property: a message with any bytes changed is answered or its connection closed; nothing else.
TEST_F(HostileClientTest, MutatedMessagesNeverStopTheServer) {
  std::mt19937_64 random(/*seed=*/5);
  for (int round = 0; round < 3000; ++round) {
    WireClient client = Raw();
    std::string bytes = HelloBytes("mutant");
    if (random() % 2 == 0) {
      ASSERT_OK(client.Hello("mutant"));
      flatbuffers::FlatBufferBuilder builder;
      const auto name = builder.CreateString("space");
      const auto body = random() % 2 == 0
                            ? wire::CreateOpenSpace(builder, name, 4096, 1, 1, 1).Union()
                            : wire::CreateListChunks(builder, name, 0, 1).Union();
      wire::FinishMessageBuffer(
          builder, wire::CreateMessage(builder, 2, static_cast<wire::Body>(random() % 27), body));
      bytes.assign(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
    }
    for (uint64_t i = random() % 6; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(1 + random() % bytes.size());
    ASSERT_OK(client.SendRaw(bytes));
    ::shutdown(client.fd(), SHUT_WR);
    (void)client.Receive();  // A reply or a hang-up; it never hangs.
  }
  ExpectAlive();
}

TEST_F(HostileClientTest, NumbersAtTheEndsOfTheirRangeAreRefused) {
  WireClient client = Connect("overflow");
  for (const int64_t number : {std::numeric_limits<int64_t>::min(), int64_t{-1}}) {
    EXPECT_THAT(client.OpenLease({{0, number, 0}}, {{0, number, 0}}),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(client.OpenLease({{0, 0, 0}}, {{0, number, 0}}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(client.OpenLease({{kHuge, kHuge, kHuge}}, {{kHuge, kHuge, kHuge}}, true),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(client.OpenLease({{kHuge, 0, 0}}, {{kHuge, 0, 0}}, true),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(client.OpenLease({{kHuge, kHuge, kHuge}}, {{}}, true));
  EXPECT_THAT(client.AckEpoch(std::numeric_limits<uint64_t>::max(), kHuge),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(client.OpenLease({{}}, {{}}), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(client.OpenSpace({.name = "s", .num_bundles = 3, .host_slots = 1}));
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{kHuge, kHuge}, {kHuge, 1}, {0, kHuge}, {15, 1}}) {
    EXPECT_OK(client.ListChunks("s", first, count));
  }
  EXPECT_THAT(client.ListChunks("s", -1, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(client.ListChunks("none\n", 0, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none\\n")));
  EXPECT_THAT(client.CloseSpace(std::numeric_limits<uint64_t>::max()),
              StatusIs(absl::StatusCode::kNotFound));
  ExpectAlive();
}

TEST_F(HostileClientTest, GarbageForATraceIsRefusedAndForgotten) {
  WireClient client = Connect("garbage");
  ASSERT_OK(client.OpenLease({{kMiB, kMiB, 0}}, {{}}));
  std::mt19937_64 random(/*seed=*/23);
  const std::string good = EncodeTrace(StepTrace(6, 4096));
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (uint64_t i = 1 + random() % 8; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() >> random() % 64);
    }
    ASSERT_OK(client.WriteTrace(bytes));
    const absl::Status status = client.MakePlan({.device_bytes = kMiB}).status();
    refused += status.ok() ? 0 : 1;
    ASSERT_FALSE(absl::IsUnavailable(status)) << status;
  }
  EXPECT_GT(refused, 500);
  ASSERT_OK(client.WriteTrace("", 64 * kMiB));  // Nothing written: zeros.
  EXPECT_THAT(client.MakePlan({.device_bytes = kMiB}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no trace")));
  ASSERT_OK(client.WriteTrace(good));
  EXPECT_OK(client.MakePlan({.device_bytes = kMiB}));
  ExpectAlive();
}

// It stays mapped by the client: the server reads a copy.
TEST_F(HostileClientTest, ATraceThatIsRewrittenWhileItIsReadHarmsNobody) {
  WireClient client = Connect("rewriter");
  ASSERT_OK(client.OpenLease({{kMiB, kMiB, 0}}, {{}}));
  const std::string good = EncodeTrace(StepTrace(500, 4096));
  int refused = 0;
  for (int round = 0; round < 40; ++round) {
    ASSERT_OK_AND_ASSIGN(const UniqueFd room, client.WriteTrace(good));
    ASSERT_OK_AND_ASSIGN(const MappedMemory map,
                         MappedMemory::Map(room.get(), static_cast<int64_t>(good.size()),
                                           MappedMemory::Access::kReadWrite));
    std::atomic<bool> stop = false;
    std::thread scribbler([&, round] {
      std::mt19937_64 random(round);
      while (!stop) map.data()[random() % good.size()] = static_cast<std::byte>(random());
    });
    const absl::Status status = client.MakePlan({.device_bytes = kMiB}).status();
    stop = true;
    scribbler.join();
    ASSERT_FALSE(absl::IsUnavailable(status)) << status;
    refused += status.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
  ExpectAlive();
}

TEST_F(HostileClientTest, ATraceHasBoundsInBytesUsesAndChunks) {
  WireClient client = Connect("bounds");
  ASSERT_OK(client.OpenLease({{kMiB, kMiB, 0}}, {{}}));
  for (const int64_t size :
       {std::numeric_limits<int64_t>::min(), int64_t{0}, 64 * kMiB + 1, kHuge}) {
    flatbuffers::FlatBufferBuilder builder;
    const auto body = wire::CreateOpenTrace(builder, size);
    EXPECT_THAT(client.Call(builder, wire::Body::OpenTrace, body.Union()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 67108864")));
  }
  ASSERT_OK_AND_ASSIGN(const UniqueFd room, client.WriteTrace("x"));
  EXPECT_EQ(::ftruncate(room.get(), 0), -1);
  EXPECT_EQ(::ftruncate(room.get(), kGiB), -1);
  ASSERT_OK(client.WriteTrace(EncodeTrace(StepTrace(300'000, 4096))));
  EXPECT_THAT(client.MakePlan({.device_bytes = kMiB}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("more than 4194304")));
  ASSERT_OK(client.WriteTrace(EncodeTrace(StepTrace(2, int64_t{1} << 59))));
  EXPECT_THAT(client.MakePlan({.device_bytes = kMiB}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 2097152")));
  ASSERT_OK(client.WriteTrace(EncodeTrace(StepTrace(2, int64_t{1} << 59))));
  EXPECT_THAT(
      client.MakePlan({.device_bytes = kMiB, .chunk_bytes = int64_t{1} << 61}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chunks of 2305843009213693952")));
  ExpectAlive();
}

TEST_F(HostileClientTest, AnotherSessionsSpaceCannotBeClosedOrTaken) {
  WireClient owner = Connect("owner");
  ASSERT_OK(owner.OpenLease({{0, kMiB, 0}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space, owner.OpenSpace({.name = "mine", .host_slots = 4}));
  WireClient thief = Connect("thief");
  EXPECT_THAT(thief.CloseSpace(space.id), StatusIs(absl::StatusCode::kNotFound));
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateTakeSlabs(builder, space.id, 0);
  EXPECT_THAT(thief.Call(builder, wire::Body::TakeSlabs, body.Union()),
              StatusIs(absl::StatusCode::kNotFound));
  for (WireClient* client : {&thief, &owner}) {  // DEVICE has no slabs here.
    flatbuffers::FlatBufferBuilder device;
    const auto take = wire::CreateTakeSlabs(device, 0, 0);
    EXPECT_THAT(client->Call(device, wire::Body::TakeSlabs, take.Union()),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_EQ(space.server().generation.load(), space.generation);
}

// The test's process is the server's: its descriptors are counted in /proc/self/fd.
TEST_F(HostileClientTest, DescriptorsThatAPeerSendsAreNotKept) {
  WireClient client = Connect("sender");
  const auto count = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = count();
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int round = 0; round < 50; ++round) {
    const std::vector<int> fds(200, file.get());
    // Newer kernels refuse them at the sender, for the server asked so.
    const absl::Status sent = client.SendRaw(HelloBytes("again"), fds);
    if (!sent.ok()) continue;
    (void)client.Receive();
  }
  EXPECT_OK(client.GetStatus());
  EXPECT_EQ(count(), before + 1);
}

TEST_F(HostileClientTest, APeerThatDoesNotReadItsRepliesBlocksNobody) {
  WireClient deaf = Connect("deaf");
  ::fcntl(deaf.fd(), F_SETFL, ::fcntl(deaf.fd(), F_GETFL) | O_NONBLOCK);
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateGetStatus(builder);
  wire::FinishMessageBuffer(builder,
                            wire::CreateMessage(builder, 9, wire::Body::GetStatus, body.Union()));
  const absl::string_view request(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                  builder.GetSize());
  // Until its own sends are refused: the server has stopped reading from it.
  int sent = 0;
  for (int idle = 0; idle < 50;) {
    if (deaf.SendRaw(request).ok()) {
      ++sent;
      idle = 0;
      ASSERT_LT(sent, 1'000'000);
      continue;
    }
    ++idle;
    ExpectAlive();  // Also gives the server time to take more, if it would.
  }
  // It is served again from where it stopped, every request in order.
  ::fcntl(deaf.fd(), F_SETFL, ::fcntl(deaf.fd(), F_GETFL) & ~O_NONBLOCK);
  for (int i = 0; i < sent; ++i) ASSERT_OK(deaf.Receive());
  EXPECT_OK(deaf.GetStatus());
}

TEST_F(HostileClientTest, ATailThatNoHonestClientWritesEndsTheSession) {
  WireClient client = Connect("liar");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  space.client().submit_tail.store(1'000'000);
  const uint64_t one = 1;
  ASSERT_EQ(::write(space.kick.get(), &one, sizeof(one)), 8);
  ExpectHangUp(client);
  while (space.server().generation.load() == space.generation) {
  }
  ExpectAlive();
}

// It is never read: watched by level it would be reported for ever.
TEST_F(HostileClientTest, AServerThatWasKickedRestsAgain) {
  WireClient client = Connect("kicker");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 0)), 0);
  EXPECT_LT(CpuTimeOver(absl::Milliseconds(400)), absl::Milliseconds(40));
  // Each kick is an edge, though the count in it never fell.
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 1, 0)), 0);
}

TEST_F(HostileClientTest, ARingThatIsNeverEmptyHoldsNobodyUp) {
  WireClient client = Connect("endless");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  for (int64_t i = 0; i < kIoRingEntries; ++i) space.entry(i).operation.store(9);  // None such.
  std::atomic<bool> stop = false;
  std::vector<std::thread> feeders;
  // As many requests ahead of the server as it accepts, whatever it does. By one thread: the tail
  // of two would go back at times, which ends the session.
  feeders.emplace_back([&] {
    while (!stop) {
      const uint64_t done = space.server().completion_count.load();
      space.client().submit_tail.store(done + kIoRingEntries / 2);
    }
  });
  feeders.emplace_back([&] {
    const uint64_t one = 1;
    while (!stop) (void)!::write(space.kick.get(), &one, sizeof(one));
  });
  for (int i = 0; i < 20; ++i) ExpectAlive();
  // From every side: the space can be closed in the middle of it.
  EXPECT_OK(client.CloseSpace(space.id));
  stop = true;
  for (std::thread& feeder : feeders) feeder.join();
  ExpectAlive();
}

// The socket is writable for ever then, and every send fails.
TEST_F(HostileClientTest, APeerThatShutsItsReadingDownWhileAReplyWaitsIsLetGo) {
  WireClient deaf = Connect("deaf");
  ::fcntl(deaf.fd(), F_SETFL, ::fcntl(deaf.fd(), F_GETFL) | O_NONBLOCK);
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateGetStatus(builder);
  wire::FinishMessageBuffer(builder,
                            wire::CreateMessage(builder, 9, wire::Body::GetStatus, body.Union()));
  const absl::string_view request(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                  builder.GetSize());
  for (int idle = 0; idle < 50; ++idle) {
    while (deaf.SendRaw(request).ok()) idle = 0;
    ExpectAlive();
  }
  ASSERT_EQ(::shutdown(deaf.fd(), SHUT_RD), 0);
  while (deaf.Receive().ok()) {  // What is queued leaves: now the server's end has room.
  }
  EXPECT_LT(CpuTimeOver(absl::Milliseconds(400)), absl::Milliseconds(100));
  // Both directions are shut down by now: by us, and by the server's end.
  pollfd state = {.fd = deaf.fd(), .events = 0, .revents = 0};
  ASSERT_EQ(::poll(&state, 1, 10'000), 1);
  EXPECT_NE(state.revents & POLLHUP, 0);
  ExpectAlive();
}

TEST_F(HostileClientTest, ASessionOfNoBytesThatHangsUpGivesItsSpacesNamesBack) {
  for (int round = 0; round < 200; ++round) {
    WireClient client = Connect("empty");
    ASSERT_OK(client.OpenLease({{}}, {{}}));
    absl::StatusOr<WireSpace> space = absl::UnavailableError("");
    const absl::Time start = absl::Now();
    do {
      space = client.OpenSpace({.name = "same", .host_slots = 0});
    } while (absl::IsAlreadyExists(space.status()) && absl::Now() < start + absl::Seconds(20));
    ASSERT_OK(space);
    space->Submit(IoOperation::kRead, 0, 0);  // A kick on its way while it hangs up.
    client.HangUp();
  }
  EXPECT_LT(CpuTimeOver(absl::Milliseconds(400)), absl::Milliseconds(40));
  ExpectAlive();
}

// The device arena has no memory behind it when it is asked for more than there are descriptors.
TEST_F(HostileClientTest, ALeaseWhoseArenaCannotBeMadeIsRefusedOnceItsBytesAreBack) {
  WireClient client = Connect("unlucky");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  // Both at once: the second must find a session without a lease, not one half taken apart.
  flatbuffers::FlatBufferBuilder lease;
  const wire::TierBytes bytes(kMiB, kMiB, 0);
  const auto open_lease = wire::CreateOpenLease(lease, &bytes, &bytes);
  wire::FinishMessageBuffer(
      lease, wire::CreateMessage(lease, 5, wire::Body::OpenLease, open_lease.Union()));
  flatbuffers::FlatBufferBuilder space;
  const auto open_space = wire::CreateOpenSpace(space, space.CreateString("s"), 4096, 1, 1, 0);
  wire::FinishMessageBuffer(
      space, wire::CreateMessage(space, 6, wire::Body::OpenSpace, open_space.Union()));
  for (const flatbuffers::FlatBufferBuilder* request : {&lease, &space}) {
    ASSERT_OK(client.SendRaw(absl::string_view(
        reinterpret_cast<const char*>(request->GetBufferPointer()), request->GetSize())));
  }
  const absl::Status refused = client.Receive().status();
  const absl::Status after = client.Receive().status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(after, StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(WireReply status, client.GetStatus());
  EXPECT_EQ(NumbersOf(status, Tier::kHost).free, 32 * kMiB);
  EXPECT_OK(client.OpenLease({{8 * kMiB, 32 * kMiB, 0}}, {{8 * kMiB, 32 * kMiB, 0}}));
  EXPECT_OK(client.CloseSession());
  ExpectAlive();
}

// Segments are no part of a lease: a space of no slots is not for nothing.
TEST_F(HostileClientTest, SegmentsOfAllSpacesTogetherHaveALimit) {
  std::vector<WireClient> clients;
  absl::Status refused;
  int64_t opened = 0;
  while (refused.ok() && clients.size() < 20) {
    clients.push_back(Connect("segments"));
    ASSERT_OK(clients.back().OpenLease({{}}, {{}}));
    for (int i = 0; i < 64 && refused.ok(); ++i) {
      const std::string name = absl::StrCat("s", clients.size(), "-", i);
      refused =
          clients.back().OpenSpace({.name = name, .num_bundles = 1024, .host_slots = 0}).status();
      opened += refused.ok() ? 1 : 0;
    }
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr("needs segments of"), HasSubstr("of 64.5 MiB"))));
  // Without the ring and the head, which all of them have.
  const int64_t bundle_bytes =
      ClientSegmentLayout(1024).size_bytes / 1024 / 16 * 16;  // Rounded down.
  EXPECT_LE(opened * 1024 * bundle_bytes, 65 * kMiB);
  EXPECT_GE(opened * 1024 * bundle_bytes, 50 * kMiB);
  ExpectAlive();
  // A session that ends gives its room back.
  ASSERT_OK(clients.front().CloseSession());
  absl::Status again;
  const absl::Time start = absl::Now();
  do {
    again =
        clients.back().OpenSpace({.name = "again", .num_bundles = 1024, .host_slots = 0}).status();
  } while (absl::IsResourceExhausted(again) && absl::Now() < start + absl::Seconds(20));
  EXPECT_OK(again);
}

// The kick is one file for both ends: the client may make it block, and take what is in it.
TEST_F(HostileClientTest, AKickThatTheClientMadeBlockingAndEmptiesBlocksNobody) {
  WireClient client = Connect("drainer");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  const int flags = ::fcntl(space.kick.get(), F_GETFL);
  ASSERT_EQ(::fcntl(space.kick.get(), F_SETFL, flags & ~O_NONBLOCK), 0);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t one = 1;
    uint64_t taken;
    ASSERT_EQ(::write(space.kick.get(), &one, sizeof(one)), 8);
    // Only if it is not empty: a server that reads may have been faster.
    pollfd full = {.fd = space.kick.get(), .events = POLLIN, .revents = 0};
    if (::poll(&full, 1, 0) == 1) (void)!::read(space.kick.get(), &taken, sizeof(taken));
  }
  EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 0)), 0);
  ExpectAlive();
}

// The client's segment belongs to the client: whatever is in it while the server reads, the server
// counts what it can and goes on.
TEST_F(HostileClientTest, OneWriterPerWord) {
  WireClient client = Connect("scribbler");
  ASSERT_OK(client.OpenLease({{4 * kMiB, 16 * kMiB, 4 * kMiB}}, {{}}));
  constexpr int64_t kBundles = 200;
  ASSERT_OK_AND_ASSIGN(
      WireSpace space,
      client.OpenSpace(
          {.name = "noise", .num_bundles = kBundles, .host_slots = 1000, .nvme_slots = 100}));
  WireClient observer = Raw();
  ASSERT_OK(observer.Hello("observer", wire::Role::kObserver));
  std::atomic<bool> stop = false;
  // Everything but the ring's tail, which has a test of its own; the kick goes off all the time.
  std::thread scribbler([&] {
    std::mt19937_64 random(/*seed=*/17);
    const int64_t num_words = space.client_map.size_bytes() / 8;
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(space.client_map.data());
    while (!stop) {
      for (int i = 0; i < 1000; ++i) {
        words[1 + random() % (num_words - 1)].store(random() >> random() % 64,
                                                    std::memory_order_relaxed);
      }
      const uint64_t tail = space.client().submit_tail.load();
      if (space.server().completions[(tail + 255) % 256].load() >> 8 == tail || tail == 0) {
        space.client().submit_tail.store(tail + 1);
      }
      const uint64_t one = 1;
      (void)!::write(space.kick.get(), &one, sizeof(one));
    }
  });
  int64_t invalid = 0;
  for (int round = 0; round < 300; ++round) {
    auto status = observer.GetStatus();
    ASSERT_OK(status);
    const wire::SpaceStatus& shown = *status->message().body_as_StatusReply()->spaces()->Get(0);
    const int64_t sum = shown.chunks_free() + shown.chunks_compute() + shown.chunks_invalid() +
                        shown.chunks_hold()->device() + shown.chunks_hold()->host() +
                        shown.chunks_hold()->nvme();
    EXPECT_EQ(sum, kBundles * kNumChunkKinds);
    EXPECT_GE(shown.step(), 0);
    const TierNumbers host = NumbersOf(*status, Tier::kHost);
    EXPECT_EQ(host.leased, 16 * kMiB);
    EXPECT_EQ(host.capacity, host.leased + host.reclaiming + host.free);
    invalid = std::max(invalid, shown.chunks_invalid());
    auto chunks = observer.ListChunks("noise", round, 600);
    ASSERT_OK(chunks);
    EXPECT_LE(chunks->message().body_as_ChunksReply()->chunks()->size(), 512);
  }
  stop = true;
  scribbler.join();
  EXPECT_GT(invalid, 0);
  EXPECT_OK(client.CloseSession());
  ExpectAlive();
}

TEST_F(HostileClientTest, TooManyConnectionsAreRefusedAndRoomComesBack) {
  std::vector<WireClient> crowd;
  absl::Status refused;
  while (refused.ok() && crowd.size() < 1000) {
    crowd.push_back(Raw());
    refused = crowd.back().Hello("crowd");
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("256 sessions")));
  EXPECT_EQ(crowd.size(), 257);
  crowd.clear();
  absl::Status again;
  const absl::Time start = absl::Now();
  do {
    WireClient client = Raw();
    again = client.Hello("next");
  } while (!again.ok() && absl::Now() < start + absl::Seconds(20));
  EXPECT_OK(again);
}

}  // namespace
}  // namespace gemini::server
