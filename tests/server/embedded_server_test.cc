// SPDX-License-Identifier: Apache-2.0
#include "server/embedded_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "gemini/shm/residency_shm.h"
#include "gemini/system/mutex.h"
#include "tests/server/nvme/nvme_io_faulty.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EmbeddedServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/gemini-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = 8 * kMiB;
    options.capacity_bytes[Tier::kHost] = 600 * kMiB;
    options.nvme_directories = {{directory_, 16 * kMiB}};
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  // In place of the other, which has no clients: 1 MiB of HOST and of NVME, `faults` outlive it.
  absl::Status StartSmallServer(NvmeFaults& faults) {
    server_.reset();
    ServerOptions options;
    options.capacity_bytes[Tier::kHost] = kMiB;
    options.nvme_directories = {{directory_, kMiB}};
    auto server = EmbeddedServer::Start(WithFaults(options, faults));
    if (server.ok()) server_ = *std::move(server);
    return server.status();
  }
  WireClient Connect(absl::string_view label, wire::Role role = wire::Role::kTrainer) {
    WireClient client(*server_->Connect());
    EXPECT_OK(client.Hello(label, role));
    return client;
  }

  std::string directory_;
  std::unique_ptr<EmbeddedServer> server_;
};

// Ends no transfer before it is told to.
class NvmeIoHeld : public NvmeIo {
 public:
  void Submit(const NvmeTransfer&, Done done) override {
    MutexLock lock(mutex_);
    held_.push_back(std::move(done));
  }
  void Cancel(uint64_t, uint64_t) override {}
  void Forget(absl::Span<const int>, absl::AnyInvocable<void()> forgotten) override { forgotten(); }

  size_t num_held() {
    MutexLock lock(mutex_);
    return held_.size();
  }
  void EndAll() {
    std::vector<Done> ended;
    {
      MutexLock lock(mutex_);
      ended.swap(held_);
    }
    for (Done& done : ended) done(absl::OkStatus());
  }

 private:
  Mutex mutex_;
  std::vector<Done> held_ ABSL_GUARDED_BY(mutex_);
};

// The kick of such a request is past when there is room for it.
TEST_F(EmbeddedServerTest, RequestsBeyondAFullRingAreTakenAsOthersEnd) {
  server_.reset();
  NvmeIoHeld* held = nullptr;
  ServerOptions options;
  options.capacity_bytes[Tier::kHost] = kMiB;
  options.nvme_directories = {{directory_, kMiB}};
  options.TESTING_ONLY_wrap_nvme_io = [&held](std::unique_ptr<NvmeIo>) {
    auto made = std::make_unique<NvmeIoHeld>();
    held = made.get();
    return made;
  };
  ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 1, .nvme_slots = 1}));
  const auto hold = [&](size_t count) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (held->num_held() != count && absl::Now() < end) ::poll(nullptr, 0, 1);
    ASSERT_EQ(held->num_held(), count);
  };
  for (int64_t i = 0; i < kIoRingEntries; ++i) space.Submit(IoOperation::kWrite, 0, 0);
  ASSERT_NO_FATAL_FAILURE(hold(kIoRingEntries));
  for (int i = 0; i < 40; ++i) space.Submit(IoOperation::kWrite, 0, 0);
  EXPECT_OK(client.GetStatus());  // By now the server knows of them.
  EXPECT_OK(client.GetStatus());
  EXPECT_EQ(held->num_held(), static_cast<size_t>(kIoRingEntries));
  held->EndAll();
  ASSERT_NO_FATAL_FAILURE(hold(40));
  held->EndAll();
  EXPECT_EQ(space.WaitCompletion(kIoRingEntries + 39), 0);
}

// Their leases are kept, for the process lives.
TEST_F(EmbeddedServerTest, AProcessThatKeepsHangingUpIsToldToEnd) {
  absl::Status refused;
  int lost = 0;
  for (; refused.ok() && lost < 300; ++lost) {
    WireClient client(*server_->Connect());
    refused = client.Hello("lost");
    if (refused.ok()) {
      ASSERT_OK(client.OpenLease({{0, 4096, 0}}, {{0, 4096, 0}}));
    }
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("hung up on 64")));
  EXPECT_EQ(lost, 65);
}

TEST_F(EmbeddedServerTest, ALeaseIsGrantedUpToWhatIsFreeAndRefusedBelowItsFloor) {
  WireClient first = Connect("first");
  EXPECT_EQ(first.free_at_hello(), (TierMap<int64_t>{{8 * kMiB, 600 * kMiB, 16 * kMiB}}));
  ASSERT_OK_AND_ASSIGN(WireLease lease,
                       first.OpenLease({{4 * kMiB, 500 * kMiB, kGiB}}, {{0, 0, 0}}));
  EXPECT_EQ(lease.granted, (TierMap<int64_t>{{4 * kMiB, 500 * kMiB, 16 * kMiB}}));
  EXPECT_EQ(lease.device_arena_bytes, 4 * kMiB);
  WireClient second = Connect("second");
  EXPECT_THAT(second.OpenLease({{0, 300 * kMiB, 0}}, {{0, 200 * kMiB, 0}}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 200 MiB of HOST, 100 MiB of 600 MiB free"),
                             HasSubstr("close job 'first'"), HasSubstr("500 MiB"))));
  // A refusal changes nothing.
  EXPECT_OK(second.OpenLease({{0, 100 * kMiB, 0}}, {{0, 100 * kMiB, 0}}));
}

TEST_F(EmbeddedServerTest, ASpaceBringsSealedSlabsThatHoldWhatIsWrittenAndMoveThroughNvme) {
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{kMiB, 300 * kMiB, 8 * kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space, client.OpenSpace({.name = "s",
                                                          .chunk_bytes = kMiB,
                                                          .num_bundles = 10,
                                                          .host_slots = 300,
                                                          .nvme_slots = 8}));
  EXPECT_EQ(space.slots_per_slab, 256);
  ASSERT_EQ(space.num_slabs, 2);
  EXPECT_EQ(space.server().generation.load(), space.generation);
  ASSERT_OK_AND_ASSIGN(MappedMemory slab, MappedMemory::Map(space.slabs[1].get(), 44 * kMiB,
                                                            MappedMemory::Access::kReadWrite));
  std::memset(slab.data(), 7, kMiB);  // HOST slot 256.
  EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 256, 3)), 0);
  std::memset(slab.data(), 0, kMiB);
  EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 257, 3)), 0);
  for (int64_t i = 0; i < kMiB; i += 4096) {
    ASSERT_EQ(static_cast<int>(slab.data()[kMiB + i]), 7);
    ASSERT_EQ(static_cast<int>(slab.data()[i]), 0);
  }
  // Outside the space, of no known kind: refused alone, the ring goes on.
  EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 300, 0)),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(space.WaitCompletion(space.Submit(static_cast<IoOperation>(9), 0, 0)),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 0, 3)), 0);
}

TEST_F(EmbeddedServerTest, SlabsThatASpaceDoesNotHaveAreRefusedWithTheirNumber) {
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, 300 * kMiB, 0}}, {{}}));
  ASSERT_OK_AND_ASSIGN(const WireSpace space,
                       client.OpenSpace({.name = "s", .chunk_bytes = kMiB, .host_slots = 300}));
  const auto take = [&](int64_t first, int64_t count) -> absl::StatusOr<size_t> {
    flatbuffers::FlatBufferBuilder builder;
    const auto body = wire::CreateTakeSlabs(builder, space.id, first, count);
    const absl::StatusOr<WireReply> reply =
        client.Call(builder, wire::Body::TakeSlabs, body.Union());
    if (!reply.ok()) return reply.status();
    return reply->fds.size();
  };
  for (const auto& [first, count] : {std::pair(-1, 1), std::pair(3, 1), std::pair(0, -1)}) {
    EXPECT_THAT(take(first, count),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("on of 2")));
  }
  EXPECT_THAT(take(1, 1), IsOkAndHolds(1));
  EXPECT_THAT(take(1, 9), IsOkAndHolds(1));
  EXPECT_THAT(take(2, 1), IsOkAndHolds(0));
}

TEST_F(EmbeddedServerTest, TheContentsWordOfAWriteComesBackWithEachReadOfItsSlot) {
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  const auto loss = static_cast<int>(absl::StatusCode::kDataLoss);
  const auto read = [&](uint64_t slot, int code) {
    const uint64_t sequence = space.Submit(IoOperation::kRead, 0, slot);
    EXPECT_EQ(space.WaitCompletion(sequence), code);
    return space.server().contents[sequence % kIoRingEntries].load();
  };
  EXPECT_EQ(read(1, loss), 0u);  // Nothing was written there.
  const uint64_t written = PackContents(0xdeadbeef);
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 1, written)), 0);
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 2)), 0);
  EXPECT_EQ(read(1, 0), written);
  EXPECT_EQ(read(2, 0), kUncheckedContents);
  EXPECT_EQ(read(1, 0), written);
  EXPECT_EQ(read(3, loss), 0u);
  // No words of a write: refused, and what was there is there still.
  for (const uint64_t word : {uint64_t{7}, ~uint64_t{0}}) {
    EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 1, word)),
              static_cast<int>(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(read(1, 0), written);
  // Its word did not come before the write was done: there is nothing to read.
  const uint64_t late = space.Submit(IoOperation::kWrite, 0, 1, 0);
  ASSERT_EQ(space.WaitCompletion(late), 0);
  EXPECT_EQ(space.server().contents[late % kIoRingEntries].load(), 0u);
  EXPECT_EQ(read(1, loss), 0u);
}

TEST_F(EmbeddedServerTest, TheContentsWordOfAWriteMayComeWhileItIsUnderWay) {
  NvmeFaults faults;
  ASSERT_OK(StartSmallServer(faults));
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  for (const uint64_t word : {PackContents(0xdeadbeef), uint64_t{7}}) {
    const uint64_t next = space.client().submit_tail.load();
    faults.AtNextSubmit([&space, next, word] { space.entry(next).contents.store(word); });
    const uint64_t write = space.Submit(IoOperation::kWrite, 0, 1, 0);
    ASSERT_EQ(space.WaitCompletion(write), 0);
    const uint64_t expected = IsContents(word) ? word : 0;
    EXPECT_EQ(space.server().contents[write % kIoRingEntries].load(), expected);
    const uint64_t read = space.Submit(IoOperation::kRead, 1, 1);
    EXPECT_EQ(space.WaitCompletion(read) == 0, expected != 0);
    EXPECT_EQ(space.server().contents[read % kIoRingEntries].load(), expected);
  }
  client = WireClient(UniqueFd());
  server_.reset();  // Before the faults.
}

TEST_F(EmbeddedServerTest, SlotsAreDealtOverTheNvmeDirectoriesAndWearIsCountedByEach) {
  ServerOptions options;
  options.capacity_bytes[Tier::kHost] = kMiB;
  for (const char* part : {"/a", "/b"}) {
    std::filesystem::create_directory(directory_ + part);
    options.nvme_directories.push_back({directory_ + part, kMiB});
  }
  ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 6}));
  const int host = space.slabs[0].get();
  const auto word_at = [host](int64_t slot) {
    int64_t word = 0;
    EXPECT_EQ(::pread(host, &word, sizeof(word), slot * 4096), 8);
    return word;
  };
  for (int64_t slot = 0; slot < 6; ++slot) {
    ASSERT_EQ(::pwrite(host, &slot, sizeof(slot), 0), 8);
    ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, slot)), 0);
    if (slot != 3) continue;
    ASSERT_OK_AND_ASSIGN(const WireReply status, client.GetStatus());
    const auto& wear = *status.message().body_as_StatusReply()->nvme_wear();
    for (const int directory : {0, 1}) EXPECT_EQ(wear.Get(directory)->written(), 2 * 4096);
  }
  for (int64_t slot = 0; slot < 6; ++slot) {
    ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 1, slot)), 0);
    EXPECT_EQ(word_at(1), slot);
  }
}

TEST_F(EmbeddedServerTest, AWriteThatFailedOrIsUnderWayLeavesNothingToRead) {
  NvmeFaults faults;
  ASSERT_OK(StartSmallServer(faults));
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(
      WireSpace space,
      client.OpenSpace({.name = "s", .chunk_bytes = 64 * kKiB, .host_slots = 4, .nvme_slots = 4}));
  const auto loss = static_cast<int>(absl::StatusCode::kDataLoss);
  for (const NvmeFault fault : {NvmeFault::kFails, NvmeFault::kEndsHalf, NvmeFault::kNoSpace}) {
    faults.Arm(fault, 2);
    ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 1, PackContents(7))), 0);
    EXPECT_NE(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 1, PackContents(8))), 0);
    EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 1, 1)), loss);
  }
  faults.Arm(NvmeFault::kFails, 0);
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 2)), 0);
  // Both are taken before the first can be completed: that is a message to the thread that takes
  // them.
  const uint64_t write = space.client().submit_tail.load();
  for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
    const bool writes = operation == IoOperation::kWrite;
    IoEntryShm& entry = space.entry(write + (writes ? 0 : 1));
    entry.operation = static_cast<uint64_t>(operation);
    entry.host_slot = 0;
    entry.nvme_slot = 2;
    entry.contents = writes ? kUncheckedContents : 0;
  }
  space.client().submit_tail.store(write + 2);
  const uint64_t one = 1;
  ASSERT_EQ(::write(space.kick.get(), &one, sizeof(one)), 8);
  EXPECT_EQ(space.WaitCompletion(write + 1), loss);
  EXPECT_EQ(space.WaitCompletion(write), 0);
  EXPECT_EQ(space.WaitCompletion(space.Submit(IoOperation::kRead, 1, 2)), 0);
  client = WireClient(UniqueFd());
  server_.reset();  // Before the faults.
}

TEST_F(EmbeddedServerTest, NobodyElseCanResizeASegmentOrWriteTheServersOne) {
  WireClient client = Connect("job");
  ASSERT_OK_AND_ASSIGN(WireLease lease, client.OpenLease({{kMiB, kMiB, 0}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space, client.OpenSpace({.name = "s", .host_slots = 8}));
  for (int fd : {lease.arena.get(), space.client_segment.get(), space.server_segment.get(),
                 space.slabs[0].get(), lease.timeline_fd.get()}) {
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(::ftruncate(fd, kGiB), -1);
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  }
  EXPECT_EQ(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, space.server_segment.get(), 0),
      MAP_FAILED);
  EXPECT_EQ(::pwrite(space.server_segment.get(), "x", 1, 0), -1);
}

TEST_F(EmbeddedServerTest, WhatASpaceTookComesBackToItsLeaseAndASessionsToAll) {
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, 10 * kMiB, 16 * kMiB}}, {{}}));
  const SpaceWish wish = {.name = "s", .chunk_bytes = kMiB, .host_slots = 10, .nvme_slots = 16};
  ASSERT_OK_AND_ASSIGN(WireSpace space, client.OpenSpace(wish));
  EXPECT_THAT(client.OpenSpace({.name = "t", .host_slots = 1}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the lease has 0 B left")));
  ASSERT_OK(client.CloseSpace(space.id));
  ASSERT_OK_AND_ASSIGN(space, client.OpenSpace(wish));
  ASSERT_OK(client.CloseSession());
  // Waits for what is on its way back, rather than being refused.
  WireClient next = Connect("next");
  ASSERT_OK_AND_ASSIGN(WireLease lease, next.OpenLease({{8 * kMiB, 600 * kMiB, 16 * kMiB}},
                                                       {{8 * kMiB, 600 * kMiB, 16 * kMiB}}));
  EXPECT_OK(next.OpenSpace(wish));  // Its name is free too.
}

TEST_F(EmbeddedServerTest, ASpaceNameIsTakenUntilItsHolderIsGone) {
  WireClient first = Connect("first");
  ASSERT_OK(first.OpenLease({{0, kMiB, 0}}, {{}}));
  ASSERT_OK(first.OpenSpace({.name = "opt-1.3b", .host_slots = 1}));
  WireClient second = Connect("second");
  ASSERT_OK(second.OpenLease({{0, kMiB, 0}}, {{}}));
  EXPECT_THAT(second.OpenSpace({.name = "opt-1.3b", .host_slots = 1}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("open in job 'first'")));
}

TEST_F(EmbeddedServerTest, AHangUpWithoutCloseFencesTheLeaseAndKeepsItsBytes) {
  WireClient observer = Connect("watch", wire::Role::kObserver);
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, 64 * kMiB, 0}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space, client.OpenSpace({.name = "s", .host_slots = 1}));
  client.HangUp();
  // The observer's requests may overtake the hang-up: poll.
  while (true) {
    ASSERT_OK_AND_ASSIGN(WireReply status, observer.GetStatus());
    ASSERT_NE(TenantOf(status, "job"), nullptr);
    if (!TenantOf(status, "job")->fenced()) continue;
    EXPECT_EQ(NumbersOf(status, Tier::kHost).leased, 64 * kMiB);
    break;
  }
  EXPECT_EQ(space.server().generation.load(), space.generation + 1);
}

TEST_F(EmbeddedServerTest, WhatAClientSendsIsCountedAndAQuietOneSendsNothing) {
  WireClient observer = Connect("watch", wire::Role::kObserver);
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{0, kMiB, kMiB}}, {{}}));
  ASSERT_OK_AND_ASSIGN(WireSpace space,
                       client.OpenSpace({.name = "s", .host_slots = 4, .nvme_slots = 4}));
  ASSERT_OK_AND_ASSIGN(WireReply before, observer.GetStatus());
  EXPECT_EQ(TenantOf(before, "job")->requests(), 3u);  // Hello, OpenLease, OpenSpace.
  // Its rounds go on in memory that both see: no request.
  space.client().rounds.store(7);
  space.client().stall_by_cause_ns[static_cast<int>(StallCause::kNvme)].store(11);
  ASSERT_EQ(space.WaitCompletion(space.Submit(IoOperation::kWrite, 0, 0)), 0);
  ASSERT_OK_AND_ASSIGN(WireReply after, observer.GetStatus());
  EXPECT_EQ(TenantOf(after, "job")->requests(), 3u);
  const wire::SpaceStatus& shown = *after.message().body_as_StatusReply()->spaces()->Get(0);
  EXPECT_EQ(shown.rounds(), 7);
  EXPECT_EQ(shown.stall_by_cause_ns()->Get(static_cast<int>(StallCause::kNvme)), 11);
  EXPECT_THAT(client.CloseSpace(space.id + 1), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(WireReply refused, observer.GetStatus());
  EXPECT_EQ(TenantOf(refused, "job")->requests(), 4u);  // A refused one counts too.
}

TEST(EmbeddedServerCapacityTest, ASpaceBeyondTheMachinesMemoryIsRefusedBeforeItIsAllocated) {
  ServerOptions options;
  options.capacity_bytes[Tier::kHost] = int64_t{1} << 50;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                       EmbeddedServer::Start(options));
  WireClient client(*server->Connect());
  ASSERT_OK(client.Hello("giant"));
  ASSERT_OK(client.OpenLease({{0, int64_t{1} << 50, 0}}, {{}}));
  EXPECT_THAT(client.OpenSpace({.name = "s", .chunk_bytes = kGiB, .host_slots = 1 << 20}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 1024 TiB of HOST"), HasSubstr("available now"))));
  EXPECT_OK(client.OpenSpace({.name = "s", .chunk_bytes = kMiB, .host_slots = 1}));
}

TEST(EmbeddedServerCapacityTest, TheBundlesOfAllSpacesTogetherHaveALimit) {
  ServerOptions options;
  options.capacity_bytes[Tier::kHost] = int64_t{1} << 40;  // Room for their segments.
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EmbeddedServer> server,
                       EmbeddedServer::Start(options));
  std::vector<WireClient> clients;
  for (int i = 0; i < 2048; ++i) {
    if (i % 64 == 0) {
      clients.emplace_back(*server->Connect());
      ASSERT_OK(clients.back().Hello("bundles"));
      ASSERT_OK(clients.back().OpenLease({{}}, {{}}));
    }
    ASSERT_OK(clients.back().OpenSpace(
        {.name = absl::StrCat("s", i), .num_bundles = 1024, .host_slots = 0}));
  }
  ASSERT_OK(clients.front().CloseSpace(4));  // The first client's id is 1, its lease 2.
  ASSERT_OK(clients.front().OpenSpace({.name = "fits", .num_bundles = 1024, .host_slots = 0}));
  WireClient next(*server->Connect());
  ASSERT_OK(next.Hello("next"));
  ASSERT_OK(next.OpenLease({{}}, {{}}));
  EXPECT_THAT(next.OpenSpace({.name = "more", .num_bundles = 1, .host_slots = 0}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2097152 of 2097152")));
  EXPECT_OK(next.GetStatus());
}

TEST_F(EmbeddedServerTest, DestroyingTheServerHangsUpOnOpenSessions) {
  WireClient client = Connect("job");
  ASSERT_OK(client.OpenLease({{kMiB, kMiB, 0}}, {{}}));
  server_.reset();
  EXPECT_THAT(client.Receive(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace gemini::server
