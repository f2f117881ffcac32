// SPDX-License-Identifier: Apache-2.0
// Sessions on a real GPU: server and client give and map slabs, copies and operators are streams,
// and every operator is a kernel that compares its bytes.
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/copy/copy_engine_cuda.h"
#include "client/device/device_slabs_cuda.h"
#include "client/session/budget_follower.h"
#include "gemini/byte_size.h"
#include "server/tiers/tier_store_cuda.h"
#include "tests/client/plan/phase_tracker_fixture.h"
#include "tests/gpu/cuda_operators.h"

namespace gemini::client {
namespace {

constexpr int kLayers = 6;
constexpr int64_t kSlab = 64 * kMiB;

// Copies that take less time than their calls, and copies that take more.
constexpr int64_t kSmallChunk = kTestChunkBytes;
constexpr int64_t kLargeChunk = 4 * kMiB;

class SessionOnGpu : public PhaseTrackerTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  SessionOnGpu() {
    driver_ = *CudaDriver::Find();
    operators_.emplace();
    chunk_bytes_ = GetParam();
    server::ServerOptions options = DefaultServer();
    options.capacity_bytes = Bytes(8 * kSlab, kGiB, 0);
    options.make_device = [this](int64_t capacity_bytes) {
      return server::MakeCudaTierStore(*driver_, 0, capacity_bytes, kSlab);
    };
    StartServer(options);
    make_slabs_ = [this](const DeviceSlabsOffer& offer) {
      return DeviceSlabsCuda::Reserve(*driver_, 0, offer);
    };
    make_copies_ = [this](TimelineShm* timeline) {
      return CopyEngineCuda::Make(
          *driver_,
          {.compute_stream = [this] { return operators_->stream(); }, .timeline = timeline});
    };
  }
  ~SessionOnGpu() override {
    job_.reset();
    operators_->Finish();
    if (session_ != nullptr) {
      EXPECT_OK(session_->status());
    }
    session_.reset();  // Its end asks for what the operators' stream has to do.
  }

  void OpenJob(int64_t device_slots, PlanSource* plans) {
    Open(kLayers, device_slots, plans);
    if (HasFatalFailure()) return;
    // Slabs are larger than what the job is to have.
    ASSERT_OK(session_->residency().SetBudget(device_slots * chunk_bytes_));
    job_->RunOperatorsOn(&*operators_);
  }

  const CudaDriver* driver_ = nullptr;
  std::optional<CudaOperators> operators_;
};

INSTANTIATE_TEST_SUITE_P(Chunks, SessionOnGpu, ::testing::Values(kSmallChunk, kLargeChunk));

TEST_P(SessionOnGpu, PlannedStepsFindTheirBytes) {
  for (const int64_t device_slots : {4, 7, 12}) {
    LocalPlans plans(chunk_bytes_);
    job_.reset();
    session_.reset();
    OpenJob(device_slots, &plans);
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) Step();
    if (HasFatalFailure()) return;
    operators_->Finish();
    EXPECT_GT(stats().planned_rounds, 8) << device_slots;
    EXPECT_OK(session_->status());
  }
}

TEST_P(SessionOnGpu, UpdatesOnDeviceFindTheirBytes) {
  LocalPlans plans(chunk_bytes_);
  plans.set_policy({.kind = PolicyKind::kStatic, .optimizer_fraction = 0.2});
  OpenJob(/*device_slots=*/30, &plans);
  for (int round = 0; round < 8 && !HasFatalFailure(); ++round) Step();
  if (HasFatalFailure()) return;
  EXPECT_GT(job_->updates_on_device(), 0);
}

TEST_P(SessionOnGpu, OnlineStepsFindTheirBytes) {
  OpenJob(/*device_slots=*/5, nullptr);
  for (int round = 0; round < 6 && !HasFatalFailure(); ++round) StepWithWrites();
}

TEST_P(SessionOnGpu, AJobGivesWayBySlabsAndGrowsBack) {
  const int64_t all_bytes = 8 * kSlab;
  SessionOptions options;
  options.want_bytes = Bytes(all_bytes, 64 * chunk_bytes_, 0);
  options.floor_bytes = Bytes(kSlab, 64 * chunk_bytes_, 0);
  options.takes_epochs = true;
  options.chunk_bytes = chunk_bytes_;
  options.label = "tenant";
  options.make_slabs = make_slabs_;
  options.make_copies = make_copies_;
  const auto open = [this](const SessionOptions& wish) {
    auto socket = server_->Connect();
    EXPECT_OK(socket);
    return Session::Open(*std::move(socket), wish);
  };
  ASSERT_OK_AND_ASSIGN(session_, open(options));
  LocalPlans plans(chunk_bytes_);
  job_.emplace(*session_, std::vector<TracedTensor>(10, {.size_bytes = chunk_bytes_}), &plans, 14,
               0);
  job_->RunOperatorsOn(&*operators_);
  BudgetFollower follower(*session_);
  job_->phases().set_between_operators([&follower] { follower.BetweenOperators(); });
  const auto run_round = [this] {
    job_->phases().BeginPhase("score");
    for (int32_t i = 0; i < 10; ++i) {
      ASSERT_OK(job_->Operator({{.tensor = i}}, /*gradients_enabled=*/false));
    }
    job_->phases().EndPhase();
  };
  for (int round = 0; round < 3 && !HasFatalFailure(); ++round) run_round();
  {
    SessionOptions most = options;
    most.floor_bytes = most.want_bytes = Bytes(7 * kSlab, 64 * chunk_bytes_, 0);
    auto newcomer = std::async(std::launch::async, [&] { return open(most); });
    while (newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      run_round();
      if (HasFatalFailure()) return;
    }
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Session> second, newcomer.get());
    EXPECT_EQ(session_->device_budget().budget_bytes(), kSlab);
    run_round();
  }
  while (session_->device_budget().budget_bytes() < all_bytes && !HasFatalFailure()) run_round();
  run_round();
  operators_->Finish();
  job_.reset();  // Before the follower.
}

}  // namespace
}  // namespace gemini::client
