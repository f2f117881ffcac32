// SPDX-License-Identifier: Apache-2.0
// What is granted of a machine's memory where DEVICE is part of it, and has no pages at first.
#include "server/device_promises.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/host_memory.h"
#include "server/embedded_server.h"
#include "tests/server/nvme/nvme_io_faulty.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DevicePromisesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, ReadHostMemory());
    if (memory_.available_bytes < memory_.total_bytes / 2) GTEST_SKIP() << "too little memory";
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = options.capacity_bytes[Tier::kHost] =
        8 * memory_.total_bytes;
    std::string name = ::testing::TempDir() + "/nvme-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    nvme_directory_ = name;
    options.nvme_directories = {{name, kMiB}};
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(WithFaults(options, faults_)));
  }
  void TearDown() override {
    server_.reset();
    if (!nvme_directory_.empty()) std::filesystem::remove_all(nvme_directory_);
  }
  WireClient Connect(absl::string_view label) {
    WireClient client(*server_->Connect());
    EXPECT_OK(client.Hello(label));
    return client;
  }
  static absl::StatusOr<WireLease> OpenLease(WireClient& client, int64_t device_bytes,
                                             int64_t host_bytes = 0) {
    const TierMap<int64_t> bytes = {{device_bytes, host_bytes, 0}};
    return client.OpenLease(bytes, bytes);
  }
  // `tenths` of what is available now, in whole MiB.
  int64_t Available(int64_t tenths) const {
    return memory_.available_bytes / kMiB * tenths / 10 * kMiB;
  }
  // What a lease that no machine has room for is told.
  std::string TooMuch() {
    WireClient client = Connect("too much");
    return std::string(OpenLease(client, 2 * memory_.total_bytes).status().message());
  }

  HostMemory memory_;
  NvmeFaults faults_;  // Outlives the server.
  std::string nvme_directory_;
  std::unique_ptr<EmbeddedServer> server_;
};

TEST_F(DevicePromisesTest, DeviceBeyondWhatTheMachineHasIsRefusedAndASmallerOneIsGranted) {
  WireClient client = Connect("job");
  EXPECT_THAT(OpenLease(client, memory_.total_bytes).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("DEVICE, which is host memory here, needs"),
                             HasSubstr("available now"))));
  EXPECT_OK(OpenLease(client, kMiB).status());
  ASSERT_OK_AND_ASSIGN(const WireReply status, client.GetStatus());
  EXPECT_EQ(NumbersOf(status, Tier::kDevice).leased, kMiB);
  EXPECT_EQ(NumbersOf(status, Tier::kDevice).reclaiming, 0);
}

TEST_F(DevicePromisesTest, OfDeviceThatIsOnlyWantedThereIsWhatTheMachineHas) {
  WireClient client = Connect("job");
  ASSERT_OK_AND_ASSIGN(const WireLease lease,
                       client.OpenLease({{4 * memory_.total_bytes, 0, 0}}, {{kMiB, 0, 0}}));
  EXPECT_GE(lease.granted[Tier::kDevice], Available(5));
  EXPECT_LE(lease.granted[Tier::kDevice], memory_.total_bytes);
}

TEST_F(DevicePromisesTest, ASpaceLeavesRoomForDeviceThatNobodyHasTouchedYet) {
  const int64_t bytes = Available(6);
  WireClient client = Connect("job");
  ASSERT_OK(OpenLease(client, bytes, bytes).status());
  EXPECT_THAT(
      client.OpenSpace({.name = "job", .chunk_bytes = kMiB, .host_slots = bytes / kMiB}).status(),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("space job needs"), HasSubstr("of them are jobs' DEVICE"))));
  EXPECT_OK(client.OpenSpace({.name = "job", .chunk_bytes = kMiB, .host_slots = 1}).status());
}

TEST_F(DevicePromisesTest, JobsThatFitTogetherAreGrantedTheirDeviceAndNobodyAfterThem) {
  WireClient first = Connect("first"), second = Connect("second"), third = Connect("third");
  const TierMap<int64_t> part = {{Available(3), 0, 0}};
  ASSERT_OK(first.SendOpenLease(part, part));
  ASSERT_OK(second.SendOpenLease(part, part));
  EXPECT_OK(first.ReceiveLease().status());
  EXPECT_OK(second.ReceiveLease().status());
  EXPECT_THAT(
      OpenLease(third, Available(5)).status(),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("of them are jobs' DEVICE")));
  EXPECT_OK(OpenLease(third, Available(2)).status());
}

TEST_F(DevicePromisesTest, OfThoseWhoAreTriedAtOnceNobodyIsGrantedWhatAnotherOneWas) {
  WireClient writer = Connect("writer"), leaver = Connect("leaver");
  ASSERT_OK(writer.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       writer.OpenSpace({.name = "s", .host_slots = 1, .nvme_slots = 1}));
  ASSERT_OK(OpenLease(leaver, kMiB).status());
  std::vector<WireClient> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(Connect(absl::StrCat("job ", i)));
  // While the server's thread is at this write, it gets to know of nothing else. Then it learns
  // first that one has left, for which it will try all who wait: those who ask meanwhile.
  faults_.AtNextSubmit([&] {
    leaver.HangUp();
    const TierMap<int64_t> part = {{Available(4), 0, 0}};
    for (WireClient& job : jobs) EXPECT_OK(job.SendOpenLease(part, part));
  });
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 0)), 0);
  std::vector<absl::StatusOr<WireLease>> leases;
  for (WireClient& job : jobs) leases.push_back(job.ReceiveLease());
  EXPECT_OK(leases[0]);
  EXPECT_OK(leases[1]);
  EXPECT_THAT(leases[2], StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("of them are jobs' DEVICE")));
}

TEST_F(DevicePromisesTest, DeviceIsPromisedUntilTheJobUsesItOrIsGone) {
  EXPECT_THAT(TooMuch(), AllOf(HasSubstr("available now"), Not(HasSubstr("jobs' DEVICE"))));
  WireClient client = Connect("job");
  ASSERT_OK_AND_ASSIGN(const WireLease lease, OpenLease(client, 16 * kMiB, kMiB));
  EXPECT_THAT(TooMuch(), HasSubstr(" 16 MiB of them are jobs' DEVICE"));
  const std::string bytes(4 * kMiB, 'x');
  ASSERT_EQ(::pwrite(lease.arena.get(), bytes.data(), bytes.size(), 0), 4 * kMiB);
  EXPECT_THAT(TooMuch(), HasSubstr(" 12 MiB of them are jobs' DEVICE"));
  // Tensors outside of the arena count, too. Both spaces state the same.
  for (const char* name : {"a", "b"}) {
    ASSERT_OK_AND_ASSIGN(const WireSpace space, client.OpenSpace({.name = name}));
    space.client().device_non_model_bytes = 2 * kMiB;
    EXPECT_THAT(TooMuch(), HasSubstr(" 10 MiB of them are jobs' DEVICE"));
    if (name[0] == 'b')
      space.client().device_non_model_bytes = std::numeric_limits<uint64_t>::max();
  }
  EXPECT_THAT(TooMuch(), Not(HasSubstr("jobs' DEVICE")));
  WireClient other = Connect("other");
  ASSERT_OK(OpenLease(other, kMiB).status());
  EXPECT_THAT(TooMuch(), HasSubstr(" 1 MiB of them are jobs' DEVICE"));
  ASSERT_OK(other.CloseSession());
  ASSERT_OK(client.CloseSession());
  EXPECT_THAT(TooMuch(), Not(HasSubstr("jobs' DEVICE")));
}

}  // namespace
}  // namespace gemini::server
