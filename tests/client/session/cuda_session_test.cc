// SPDX-License-Identifier: Apache-2.0
// Sessions with a server whose DEVICE is a GPU's, of a driver whose memory is the process's own:
// what the kernel and the GPU do is not seen here, but who has which slab when.
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "client/device/device_slabs_cuda.h"
#include "client/session/budget_follower.h"
#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "server/tiers/tier_store_counted.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/client/plan/planned_job.h"
#include "tests/fake_cuda_driver.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlab = 2 * kMiB;
constexpr int64_t kChunk = 256 * kKiB;

class CudaSessionTest : public SessionFixture {
 protected:
  CudaSessionTest() { StartGpuServer(kSlab); }
  ~CudaSessionTest() override {
    session_.reset();
    server_.reset();
    EXPECT_EQ(fake_.num_mappings(), 0);
    EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 0);
    EXPECT_EQ(fake_.num_handles(), 0);
    EXPECT_EQ(fake_.num_ranges(), 0);
  }

  // With 16 MiB of DEVICE.
  void StartGpuServer(int64_t slab_bytes) {
    server::ServerOptions options = DefaultServer();
    options.make_device = [this, slab_bytes](int64_t capacity_bytes) {
      return server::MakeCudaTierStore(fake_.driver(), 0, capacity_bytes, slab_bytes);
    };
    StartServer(options);
  }
  // The same where memory cannot be shared.
  void StartCountingServer() {
    server::ServerOptions options = DefaultServer();
    options.make_device = [](int64_t capacity_bytes) {
      return server::MakeCountedTierStore(FakeCudaDriver::kUuid, capacity_bytes, kSlab);
    };
    StartServer(options);
  }
  SessionOptions Want(int64_t device_bytes, int64_t floor_bytes) {
    SessionOptions options;
    options.want_bytes = Bytes(device_bytes, 16 * kMiB, 0);
    options.floor_bytes = Bytes(floor_bytes, 16 * kMiB, 0);
    options.takes_epochs = true;
    options.chunk_bytes = kChunk;
    options.label = "tenant";
    options.make_slabs = [this](const DeviceSlabsOffer& offer) {
      return DeviceSlabsCuda::Reserve(fake_.driver(), 0, offer);
    };
    return options;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(SessionOptions options) {
    auto socket = server_->Connect();
    if (!socket.ok()) return socket.status();
    return Session::Open(*std::move(socket), std::move(options));
  }
  // Opens session_ with operators_ that run when somebody waits for them.
  void OpenLate(SessionOptions options) {
    options.make_copies = [this](TimelineShm* timeline) {
      auto operators = std::make_unique<LazyOperators>(timeline);
      operators_ = operators.get();
      return operators;
    };
    ASSERT_OK_AND_ASSIGN(session_, Open(std::move(options)));
  }
  // Opens one in another thread, while `between` runs here.
  std::unique_ptr<Session> Admit(int64_t device_bytes, int64_t floor_bytes,
                                 const std::function<void()>& between) {
    std::future<absl::StatusOr<std::unique_ptr<Session>>> newcomer =
        std::async(std::launch::async, [&] { return Open(Want(device_bytes, floor_bytes)); });
    while (newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) between();
    auto opened = newcomer.get();
    EXPECT_OK(opened);
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  // Of the session that came first.
  static int64_t FirstTarget(Connection& observer) {
    const absl::StatusOr<Reply> reply = GetStatus(observer);
    EXPECT_OK(reply);
    return reply->As<wire::StatusReply>()->tenants()->Get(0)->device_target();
  }

  LazyOperators* operators_ = nullptr;
  FakeCudaDriver fake_{/*memory_bytes=*/kGiB, /*granularity_bytes=*/64 * kKiB};
};

// A job whose ten tensors take a chunk each, with rounds of ten operators, or of one that takes
// all.
class Job {
 public:
  Job(Session& session, PlanSource* plans, bool at_once = false)
      : at_once_(at_once),
        job_(session, std::vector<TracedTensor>(kTensors, {.size_bytes = session.chunk_bytes()}),
             plans, kTensors + 4, 0),
        follower_(session) {
    job_.phases().set_between_operators([this] { follower_.BetweenOperators(); });
  }
  PlannedJob& job() { return job_; }
  BudgetFollower& follower() { return follower_; }
  void RunRound() {
    job_.phases().BeginPhase("score");
    std::vector<TensorUse> uses;
    for (int32_t i = 0; i < kTensors; ++i) {
      uses.push_back({.tensor = i});
      if (at_once_ && i + 1 < kTensors) continue;
      EXPECT_OK(job_.Operator(uses, /*gradients_enabled=*/false));
      uses.clear();
    }
    job_.phases().EndPhase();
  }

 private:
  static constexpr int32_t kTensors = 10;
  const bool at_once_;
  PlannedJob job_;
  BudgetFollower follower_;
};

TEST_F(CudaSessionTest, StatusNamesTheGpu) {
  const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
  ASSERT_OK_AND_ASSIGN(const Reply reply, GetStatus(*observer));
  const auto& status = *reply.As<wire::StatusReply>();
  EXPECT_EQ(flatbuffers::GetString(status.device_gpu_uuid()), FakeCudaDriver::kUuid);
  EXPECT_FALSE(status.device_is_counted());
}

TEST_F(CudaSessionTest, ALeaseHasWholeSlabs) {
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(/*device_bytes=*/5 * kMiB, /*floor_bytes=*/kMiB)));
  EXPECT_EQ(session_->granted_bytes()[Tier::kDevice], 3 * kSlab);
  EXPECT_EQ(fake_.num_mappings(), 3);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 3);
  LocalPlans plans(kChunk);
  {
    Job job(*session_, &plans);
    for (int round = 0; round < 4; ++round) job.RunRound();
  }
  ASSERT_OK(session_->Close());
  EXPECT_EQ(fake_.num_mappings(), 0);
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 16 * kMiB)));
  EXPECT_EQ(fake_.num_mappings(), 8);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 8);
}

// Its operators run as late as they may: a slab that went before one of them would be missed.
TEST_F(CudaSessionTest, AJobGivesWayAndGrowsBackBySlabs) {
  SessionOptions options = Want(16 * kMiB, 3 * kMiB);
  OpenLate(std::move(options));
  ASSERT_NE(operators_, nullptr);
  LateHostOperators late(*operators_);
  LocalPlans plans(kChunk);
  {
    Job job(*session_, &plans);
    job.job().RunOperatorsOn(&late);
    for (int round = 0; round < 3; ++round) job.RunRound();
    EXPECT_EQ(session_->device_budget().budget_bytes(), 16 * kMiB);
    {
      const std::unique_ptr<Session> second = Admit(11 * kMiB, 11 * kMiB, [&] { job.RunRound(); });
      ASSERT_NE(second, nullptr);
      EXPECT_EQ(second->granted_bytes()[Tier::kDevice], 12 * kMiB);
      EXPECT_EQ(session_->device_budget().budget_bytes(), 4 * kMiB);
      EXPECT_EQ(fake_.num_mappings(), 8);
      EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 8);
      job.RunRound();
    }
    while (session_->device_budget().budget_bytes() < 16 * kMiB) job.RunRound();
    EXPECT_EQ(fake_.num_mappings(), 8);
    EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 8);
    job.RunRound();
    late.Finish();
  }
}

// A slab ends within a chunk.
TEST_F(CudaSessionTest, ChunksNeedNotFillSlabs) {
  SessionOptions options = Want(5 * kMiB, kMiB);
  options.chunk_bytes = 768 * kKiB;
  ASSERT_OK_AND_ASSIGN(session_, Open(std::move(options)));
  EXPECT_EQ(session_->residency().num_slots(), 8);
  LocalPlans plans(session_->chunk_bytes());
  Job job(*session_, &plans);
  for (int round = 0; round < 4; ++round) job.RunRound();
}

// The server knows of a plan what it needs at least, which is no whole slab: nobody gets a part of
// the rest of one.
TEST_F(CudaSessionTest, WhatAPlanNeedsAtLeastIsKeptInWholeSlabs) {
  SessionOptions options = Want(16 * kMiB, 0);
  options.chunk_bytes = 896 * kKiB;  // Ten are 8.75 MiB.
  ASSERT_OK_AND_ASSIGN(session_, Open(std::move(options)));
  const std::unique_ptr<ServerPlanSource> plans = session_->MakePlanSource();
  {
    Job job(*session_, plans.get(), /*at_once=*/true);
    for (int round = 0; round < 4; ++round) job.RunRound();
    const std::unique_ptr<Session> second = Admit(16 * kMiB, 0, [&] { job.RunRound(); });
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(session_->device_budget().budget_bytes(), 10 * kMiB);
    EXPECT_EQ(second->granted_bytes()[Tier::kDevice], 6 * kMiB);
    EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 8);
    job.RunRound();
  }
}

// Operators that are under way when a session is closed end before their memory goes.
TEST_F(CudaSessionTest, CloseWaitsForOperators) {
  SessionOptions options = Want(2 * kMiB, 2 * kMiB);
  OpenLate(std::move(options));
  ASSERT_NE(operators_, nullptr);
  LateHostOperators late(*operators_);
  {
    LocalPlans plans(kChunk);
    Job job(*session_, &plans);
    job.job().RunOperatorsOn(&late);
    job.RunRound();
  }
  EXPECT_FALSE(operators_->Done(operators_->AfterOperators()));
  ASSERT_OK(session_->Close());
  EXPECT_TRUE(operators_->Done(operators_->AfterOperators()));
}

// The first never saw that it had grown, and what it is asked for is more than it has mapped.
TEST_F(CudaSessionTest, ATargetBetweenWhatItHasMappedAndWhatItHasBeenGranted) {
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 4 * kMiB)));
  BudgetFollower follower(*session_);
  const auto follow = [&] { follower.BetweenOperators(); };
  std::unique_ptr<Session> second = Admit(12 * kMiB, 12 * kMiB, follow);
  ASSERT_NE(second, nullptr);
  second.reset();
  AwaitGrant(16 * kMiB);
  const std::unique_ptr<Session> third = Admit(8 * kMiB, 8 * kMiB, follow);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 8 * kMiB);
  EXPECT_EQ(fake_.num_mappings(), 8);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 8);
}

TEST_F(CudaSessionTest, AGpuThatHasNoMoreLeavesAJobAsItIs) {
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 4 * kMiB)));
  BudgetFollower follower(*session_);
  const auto follow = [&] { follower.BetweenOperators(); };
  std::unique_ptr<Session> second = Admit(12 * kMiB, 12 * kMiB, follow);
  ASSERT_NE(second, nullptr);
  fake_.SetMemoryBytes(0);  // Others have taken it.
  second.reset();
  AwaitGrant(16 * kMiB);
  const auto before = std::chrono::steady_clock::now();
  do {
    follow();
  } while (fake_.num_out_of_memory() == 0);
  for (int i = 0; i < 100'000; ++i) follow();
  // Not between each two operators.
  EXPECT_LE(fake_.num_out_of_memory(),
            1 + (std::chrono::steady_clock::now() - before) / BudgetFollower::kRetryAfter);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 4 * kMiB);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 2);
  fake_.SetMemoryBytes(kGiB);
  while (session_->device_budget().budget_bytes() < 16 * kMiB) follow();
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 8);
  EXPECT_EQ(fake_.num_mappings(), 8);
}

TEST_F(CudaSessionTest, ASessionStartsWithWhatItsFloorNeeds) {
  fake_.SetMemoryBytes(0);
  for (const int64_t floor_bytes : {int64_t{0}, 4 * kMiB}) {
    EXPECT_THAT(Open(Want(16 * kMiB, floor_bytes)), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  fake_.SetMemoryBytes(kGiB);
  // From the sixth slab on, which is asked for again.
  fake_.FailCall(3 + 3 * 5, CUDA_ERROR_OUT_OF_MEMORY, /*count=*/2);
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 10 * kMiB)));
  EXPECT_EQ(session_->granted_bytes()[Tier::kDevice], 16 * kMiB);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 10 * kMiB);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 5);
  EXPECT_EQ(fake_.num_mappings(), 5);
  session_.reset();
  fake_.FailCall(3 + 3 * 4, CUDA_ERROR_OUT_OF_MEMORY, /*count=*/2);
  EXPECT_THAT(Open(Want(16 * kMiB, 10 * kMiB)), StatusIs(absl::StatusCode::kResourceExhausted));
}

// The first is asked to give way before it has its slabs, for it takes its time to reserve
// addresses.
TEST_F(CudaSessionTest, AnEpochMayComeBeforeTheFirstSlabs) {
  SessionOptions options = Want(16 * kMiB, 4 * kMiB);
  std::future<absl::StatusOr<std::unique_ptr<Session>>> newcomer;
  options.make_slabs = [&](const DeviceSlabsOffer& offer) {
    newcomer = std::async(std::launch::async, [this] { return Open(Want(8 * kMiB, 8 * kMiB)); });
    const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
    while (FirstTarget(*observer) == 16 * kMiB) {
    }
    return DeviceSlabsCuda::Reserve(fake_.driver(), 0, offer);
  };
  ASSERT_OK_AND_ASSIGN(session_, Open(std::move(options)));
  BudgetFollower follower(*session_);
  while (newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    follower.BetweenOperators();
  }
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Session> second, newcomer.get());
  EXPECT_EQ(second->device_budget().budget_bytes(), 8 * kMiB);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 8 * kMiB);
  EXPECT_TRUE(follower.KeepsApart());
  EXPECT_EQ(fake_.num_mappings(), 8);
}

// Slabs that could not be unmapped are in the place of what is apart, until they are.
TEST_F(CudaSessionTest, ASlabThatStaysMappedIsToldAndTriedAgain) {
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 4 * kMiB)));
  BudgetFollower follower(*session_);
  EXPECT_TRUE(follower.KeepsApart());
  follower.SetApart(6 * kMiB);
  EXPECT_FALSE(follower.KeepsApart());
  fake_.FailCall(1, CUDA_ERROR_UNKNOWN);  // Of three slabs, one is unmapped.
  follower.BetweenOperators();
  EXPECT_EQ(session_->device_budget().budget_bytes(), 10 * kMiB);
  EXPECT_EQ(fake_.num_mappings(), 7);
  EXPECT_FALSE(follower.KeepsApart());
  follower.BetweenOperators();  // Not yet.
  EXPECT_EQ(fake_.num_mappings(), 7);
  while (!follower.KeepsApart()) follower.BetweenOperators();
  EXPECT_EQ(fake_.num_mappings(), 5);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 5);
}

// What is apart is memory that no slab has, for as long as that is so.
TEST_F(CudaSessionTest, WhatIsApartIsNotInSlabs) {
  SessionOptions options = Want(16 * kMiB, 0);
  options.apart_bytes = 5 * kMiB;
  OpenLate(std::move(options));
  ASSERT_NE(operators_, nullptr);
  EXPECT_EQ(session_->granted_bytes()[Tier::kDevice], 16 * kMiB);
  LateHostOperators late(*operators_);
  LocalPlans plans(kChunk);
  Job job(*session_, &plans);
  job.job().RunOperatorsOn(&late);
  const auto expect_slabs = [&](int64_t count) {
    EXPECT_EQ(session_->device_budget().budget_bytes(), count * kSlab);
    EXPECT_EQ(FakeCudaDriver::NumDescriptors(), count);
    EXPECT_EQ(fake_.num_mappings(), count);
  };
  expect_slabs(5);
  for (const auto& [apart_bytes, count] :
       {std::pair<int64_t, int64_t>{12 * kMiB, 2}, {1, 7}, {13 * kMiB, 1}, {0, 8}, {6 * kMiB, 5}}) {
    job.RunRound();
    job.follower().SetApart(apart_bytes);
    job.RunRound();
    expect_slabs(count);
  }
  late.Finish();
}

// A plan's floor has room for it: another job is refused before it is taken away.
TEST_F(CudaSessionTest, ThePlansFloorHasWhatIsApart) {
  SessionOptions options = Want(16 * kMiB, 0);
  options.chunk_bytes = 896 * kKiB;  // Ten are 8.75 MiB.
  options.apart_bytes = 3 * kMiB;
  ASSERT_OK_AND_ASSIGN(session_, Open(std::move(options)));
  const std::unique_ptr<ServerPlanSource> plans = session_->MakePlanSource();
  {
    Job job(*session_, plans.get(), /*at_once=*/true);
    for (int round = 0; round < 4; ++round) job.RunRound();
    const std::unique_ptr<Session> second = Admit(16 * kMiB, 0, [&] { job.RunRound(); });
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(second->granted_bytes()[Tier::kDevice], 2 * kMiB);
    EXPECT_EQ(session_->device_budget().budget_bytes(), 10 * kMiB);
  }
}

// What was made for it and cannot be mapped is destroyed: nobody could use it, and an epoch could
// not be answered.
TEST_F(CudaSessionTest, WhatCannotBeMappedIsGivenBack) {
  fake_.FailCall(3 + 3 * 8 + 4 * 2, CUDA_ERROR_UNKNOWN);  // The import of the third of eight slabs.
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 2 * kMiB)));
  EXPECT_EQ(fake_.num_mappings(), 2);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 2);
  BudgetFollower follower(*session_);
  follower.BetweenOperators();
  EXPECT_EQ(fake_.num_mappings(), 8);
}

TEST_F(CudaSessionTest, WhereMemoryCannotBeSharedSlabsAreTheSessions) {
  StartCountingServer();
  fake_.SetMemoryBytes(0);
  EXPECT_THAT(Open(Want(16 * kMiB, 4 * kMiB)), StatusIs(absl::StatusCode::kResourceExhausted));
  fake_.SetMemoryBytes(kGiB);
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 4 * kMiB)));
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 0);
  EXPECT_EQ(fake_.num_mappings(), 8);
  BudgetFollower follower(*session_);
  const auto follow = [&] { follower.BetweenOperators(); };
  std::unique_ptr<Session> second = Admit(6 * kMiB, 6 * kMiB, follow);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 10 * kMiB);
  EXPECT_EQ(fake_.num_mappings(), 8);
  second.reset();
  while (session_->device_budget().budget_bytes() < 16 * kMiB) follow();
  EXPECT_EQ(fake_.num_mappings(), 8);
}

TEST_F(CudaSessionTest, ASessionIsForTheServersGpu) {
  StartCountingServer();
  SessionOptions options = Want(4 * kMiB, 4 * kMiB);
  options.make_slabs = [this](DeviceSlabsOffer offer) {
    EXPECT_EQ(offer.gpu_uuid, FakeCudaDriver::kUuid);
    EXPECT_TRUE(offer.is_counted);
    offer.gpu_uuid = "another";
    return DeviceSlabsCuda::Reserve(fake_.driver(), 0, std::move(offer));
  };
  EXPECT_THAT(Open(options), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("UUID")));
}

TEST_F(CudaSessionTest, MoreSlabsThanAMessageHolds) {
  StartGpuServer(64 * kKiB);
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 4 * kMiB)));
  EXPECT_EQ(session_->granted_bytes()[Tier::kDevice], 16 * kMiB);
  EXPECT_EQ(FakeCudaDriver::NumDescriptors(), 256);
  EXPECT_EQ(fake_.num_mappings(), 256);
}

TEST_F(CudaSessionTest, ARefusalOfTheDriverIsTheSessions) {
  SessionOptions options = Want(4 * kMiB, 4 * kMiB);
  options.make_slabs = [](const DeviceSlabsOffer&) { return absl::UnavailableError("no context"); };
  EXPECT_THAT(Open(options), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no context")));
  ASSERT_OK_AND_ASSIGN(session_, Open(Want(16 * kMiB, 16 * kMiB)));  // Nothing is lost.
}

TEST_F(CudaSessionTest, BothSidesAgreeOnWhatDeviceIs) {
  SessionOptions options = Want(4 * kMiB, 4 * kMiB);
  options.make_slabs = nullptr;
  EXPECT_THAT(Open(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is a GPU")));
  StartServer(DefaultServer());
  EXPECT_THAT(Open(Want(4 * kMiB, 4 * kMiB)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is host memory")));
}

}  // namespace
}  // namespace gemini::client
