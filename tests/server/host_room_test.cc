// SPDX-License-Identifier: Apache-2.0
// What is granted of a machine's memory where DEVICE is part of it, and has no pages at first.
#include <memory>
#include <optional>

#include "gemini/byte_size.h"
#include "server/embedded_server.h"
#include "server/tiers/host_memory.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ServerHostRoomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, ReadHostMemory());
    if (memory_.available_bytes < memory_.total_bytes / 4) GTEST_SKIP() << "too little memory";
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = options.capacity_bytes[Tier::kHost] =
        2 * memory_.total_bytes;
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
    client_.emplace(*server_->Connect());
    ASSERT_OK(client_->Hello("job"));
  }
  absl::Status OpenLease(int64_t device_bytes, int64_t host_bytes) {
    const TierMap<int64_t> bytes = {{device_bytes, host_bytes, 0}};
    return client_->OpenLease(bytes, bytes).status();
  }

  HostMemory memory_;
  std::unique_ptr<EmbeddedServer> server_;
  std::optional<WireClient> client_;
};

TEST_F(ServerHostRoomTest, DeviceBeyondWhatTheMachineHasIsRefused) {
  EXPECT_THAT(OpenLease(memory_.total_bytes, 0),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("what the job was granted of DEVICE needs"),
                             HasSubstr("available now"))));
  EXPECT_OK(OpenLease(kMiB, 0));
}

TEST_F(ServerHostRoomTest, ASpaceLeavesRoomForDeviceThatNobodyHasTouchedYet) {
  const int64_t slots = memory_.available_bytes / kMiB * 6 / 10;
  ASSERT_OK(OpenLease(slots * kMiB, slots * kMiB));
  EXPECT_THAT(
      client_->OpenSpace({.name = "job", .chunk_bytes = kMiB, .host_slots = slots}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("space job needs"), HasSubstr("were granted to jobs as DEVICE"))));
  EXPECT_OK(client_->OpenSpace({.name = "job", .chunk_bytes = kMiB, .host_slots = 1}));
}

}  // namespace
}  // namespace gemini::server
