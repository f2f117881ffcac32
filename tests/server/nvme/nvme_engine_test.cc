// SPDX-License-Identifier: Apache-2.0
// A server with each engine of its NVMe I/O, where the kernel allows io_uring and where it does
// not.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "gemini/byte_size.h"
#include "server/embedded_server.h"
#include "tests/server/denied_calls.h"
#include "tests/server/locked_memory.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NvmeEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/gemini-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    options_.capacity_bytes[Tier::kHost] = 64 * kMiB;
    options_.nvme_directories = {{name, 64 * kMiB}};
  }
  void TearDown() override { std::filesystem::remove_all(options_.nvme_directories[0].path); }

  // A job that sends all its chunks to NVME and back to other slots, with a space of its own.
  static void RunJob(EmbeddedServer& server, const std::string& name) {
    constexpr int64_t kChunk = 3 * kMiB;
    constexpr int64_t kChunks = 8;
    WireClient client(*server.Connect());
    ASSERT_OK(client.Hello(name));
    ASSERT_OK(client.OpenLease({{0, 2 * kChunks * kChunk, kChunks * kChunk}}, {{}}));
    ASSERT_OK_AND_ASSIGN(WireSpace space, client.OpenSpace({.name = name,
                                                            .chunk_bytes = kChunk,
                                                            .num_bundles = kChunks,
                                                            .host_slots = 2 * kChunks,
                                                            .nvme_slots = kChunks}));
    ASSERT_OK_AND_ASSIGN(const MappedMemory slab,
                         MappedMemory::Map(space.slabs[0].get(), 2 * kChunks * kChunk,
                                           MappedMemory::Access::kReadWrite));
    uint64_t* const words = reinterpret_cast<uint64_t*>(slab.data());
    constexpr int64_t kWords = kChunks * kChunk / 8;
    for (int64_t i = 0; i < kWords; ++i) words[i] = i * 0x9e3779b97f4a7c15;
    for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
      const int64_t first_slot = operation == IoOperation::kWrite ? 0 : kChunks;
      std::vector<uint64_t> submitted;
      for (int64_t i = 0; i < kChunks; ++i) {
        submitted.push_back(space.Submit(operation, first_slot + i, kChunks - 1 - i));
      }
      for (const uint64_t sequence : submitted) EXPECT_EQ(space.WaitCompletion(sequence), 0);
    }
    EXPECT_EQ(std::memcmp(words, words + kWords, kChunks * kChunk), 0);
    ASSERT_OK(client.CloseSpace(space.id));
    ASSERT_OK(client.CloseSession());
  }

  ServerOptions options_;
};

TEST_F(NvmeEngineTest, EachEngineMovesTheBytesOfOneJobAfterAnother) {
  for (const NvmeEngine engine : {NvmeEngine::kUring, NvmeEngine::kPread, NvmeEngine::kAuto}) {
    options_.nvme_engine = engine;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                         EmbeddedServer::Start(options_));
    // The next one's slabs have the descriptors of the last one's.
    for (int job = 0; job < 3; ++job) RunJob(*server, "job");
  }
}

TEST_F(NvmeEngineTest, WhereUringIsDeniedTheServerStartsWithThreadsAndWorks) {
  std::thread([&] {
    DenyUring();
    options_.nvme_engine = NvmeEngine::kUring;
    EXPECT_THAT(EmbeddedServer::Start(options_),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("io_uring_setup: Operation not permitted"),
                               HasSubstr("--nvme-io auto"))));
    options_.nvme_engine = NvmeEngine::kAuto;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                         EmbeddedServer::Start(options_));
    RunJob(*server, "job");
  }).join();
}

TEST_F(NvmeEngineTest, WhereNextToNothingMayBePinnedUringGoesOnWithoutIt) {
  std::thread([&] {
    const LittleLockedMemory little;
    const int64_t before = PinnedBytes();
    options_.nvme_engine = NvmeEngine::kUring;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                         EmbeddedServer::Start(options_));
    for (int job = 0; job < 2; ++job) RunJob(*server, "job");
    EXPECT_EQ(PinnedBytes(), before);
  }).join();
}

TEST_F(NvmeEngineTest, AClosedSpaceLeavesNoPagePinned) {
  options_.nvme_engine = NvmeEngine::kUring;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                       EmbeddedServer::Start(options_));
  const int64_t before = PinnedBytes();
  WireClient client(*server->Connect());
  ASSERT_OK(client.Hello("job"));
  for (const bool closes_space : {true, false}) {
    ASSERT_OK(client.OpenLease({{0, 32 * kMiB, 4 * kMiB}}, {{}}));
    ASSERT_OK_AND_ASSIGN(
        WireSpace space,
        client.OpenSpace({.name = "s", .chunk_bytes = 4 * kMiB, .host_slots = 8, .nvme_slots = 1}));
    EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 5, 0)), 0);
    EXPECT_EQ(PinnedBytes() - before, 16 * kMiB);
    if (closes_space) {
      ASSERT_OK(client.CloseSpace(space.id));
      EXPECT_EQ(PinnedBytes(), before);
    }
    ASSERT_OK(client.CloseSession());
    client = WireClient(*server->Connect());
    ASSERT_OK(client.Hello("next"));
    while (NumbersOf(*client.GetStatus(), Tier::kHost).free != 64 * kMiB) {
    }
    EXPECT_EQ(PinnedBytes(), before);
  }
}

}  // namespace
}  // namespace gemini::server
