// SPDX-License-Identifier: Apache-2.0
// Two jobs on one DEVICE: the first gives way between its operators, and grows back.
#include "client/session/budget_follower.h"

#include <future>

#include "tests/client/plan/planned_job.h"

namespace gemini::client {
namespace {

constexpr int64_t kMiB = 1 << 20;

class BudgetFollowerTest : public SessionFixture {
 protected:
  absl::StatusOr<std::unique_ptr<Session>> OpenWith(int64_t device_bytes, int64_t floor_bytes) {
    auto socket = server_->Connect();
    if (!socket.ok()) return socket.status();
    SessionOptions options;
    options.want_bytes = Bytes(device_bytes, 4 * kMiB, 0);
    options.floor_bytes = Bytes(floor_bytes, 4 * kMiB, 0);
    options.takes_epochs = true;
    options.chunk_bytes = 256 * 1024;
    options.label = "tenant";
    return Session::Open(*std::move(socket), options);
  }
};

TEST_F(BudgetFollowerTest, AckBeforeReassign) {
  // The server has 16 MiB.
  ASSERT_OK_AND_ASSIGN(session_, OpenWith(16 * kMiB, 4 * kMiB));
  LocalPlans plans(session_->chunk_bytes());
  {
    PlannedJob job(*session_, std::vector<TracedTensor>(10, {.size_bytes = 256 * 1024}), &plans, 14,
                   0);
    BudgetFollower follower(*session_);
    job.phases().set_between_operators([&follower] { follower.BetweenOperators(); });
    const auto run_round = [&job] {
      job.phases().BeginPhase("score");
      for (int32_t i = 0; i < 10; ++i) {
        ASSERT_OK(job.Operator({{.tensor = i}}, /*gradients_enabled=*/false));
      }
      job.phases().EndPhase();
    };
    for (int round = 0; round < 3; ++round) run_round();
    if (HasFatalFailure()) return;
    EXPECT_EQ(session_->device_budget().budget_bytes(), 16 * kMiB);
    std::future<absl::StatusOr<std::unique_ptr<Session>>> newcomer =
        std::async(std::launch::async, [this] { return OpenWith(12 * kMiB, 12 * kMiB); });
    // The first job works on until the second is there, which takes an answer of its.
    while (newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      run_round();
      if (HasFatalFailure()) return;
    }
    {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Session> second, newcomer.get());
      EXPECT_EQ(session_->device_budget().budget_bytes(), 4 * kMiB);
      EXPECT_LE(session_->device_budget().used_bytes(), 4 * kMiB);
      run_round();
      if (HasFatalFailure()) return;
      EXPECT_EQ(session_->device_budget().budget_bytes() + second->device_budget().budget_bytes(),
                16 * kMiB);
    }
    // It leaves, and the first grows back: the server makes the memory first.
    while (session_->device_budget().budget_bytes() < 16 * kMiB) {
      run_round();
      if (HasFatalFailure()) return;
    }
  }
}

// The first job's memory goes from one tenant to the next while it is between two operators: it
// never saw that it had grown, and what it is asked for is more than it has.
TEST_F(BudgetFollowerTest, ATargetAboveItsBudgetIsAcknowledgedToo) {
  ASSERT_OK_AND_ASSIGN(session_, OpenWith(16 * kMiB, 4 * kMiB));
  BudgetFollower follower(*session_);
  const auto admit = [&](int64_t device_bytes) -> std::unique_ptr<Session> {
    std::future<absl::StatusOr<std::unique_ptr<Session>>> newcomer = std::async(
        std::launch::async, [&, device_bytes] { return OpenWith(device_bytes, device_bytes); });
    while (newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      follower.BetweenOperators();
    }
    auto opened = newcomer.get();
    EXPECT_OK(opened);
    return opened.ok() ? *std::move(opened) : nullptr;
  };
  std::unique_ptr<Session> second = admit(12 * kMiB);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 4 * kMiB);
  second.reset();
  AwaitGrant(16 * kMiB);  // Not looked at by the first.
  const std::unique_ptr<Session> third = admit(8 * kMiB);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(session_->device_budget().budget_bytes(), 8 * kMiB);
}

// Both want all of it: each has a half, and the second grows when the first is gone.
TEST_F(BudgetFollowerTest, ASecondJobHasAHalfAndGrowsWhenTheFirstEnds) {
  ASSERT_OK_AND_ASSIGN(session_, OpenWith(16 * kMiB, 2 * kMiB));
  std::future<absl::StatusOr<std::unique_ptr<Session>>> newcomer =
      std::async(std::launch::async, [this] { return OpenWith(16 * kMiB, 2 * kMiB); });
  {
    BudgetFollower follower(*session_);
    while (newcomer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      follower.BetweenOperators();
    }
  }
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Session> second, newcomer.get());
  EXPECT_EQ(session_->device_budget().budget_bytes(), 8 * kMiB);
  EXPECT_EQ(second->device_budget().budget_bytes(), 8 * kMiB);
  session_.reset();
  BudgetFollower follower(*second);
  const absl::Time start = absl::Now();
  while (second->device_budget().budget_bytes() < 16 * kMiB) {
    ASSERT_LT(absl::Now() - start, absl::Seconds(20));
    follower.BetweenOperators();
  }
}

// A job whose chunks are all in HOST does no I/O, by which it would notice.
TEST_F(BudgetFollowerTest, TheServersDeathIsLatchedBetweenOperators) {
  ASSERT_OK_AND_ASSIGN(session_, OpenWith(16 * kMiB, 2 * kMiB));
  BudgetFollower follower(*session_);
  follower.BetweenOperators();
  ASSERT_OK(session_->status());
  server_.reset();
  const auto start = std::chrono::steady_clock::now();
  while (session_->status().ok()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    follower.BetweenOperators();
  }
  EXPECT_THAT(session_->status(),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("resume")));
}

}  // namespace
}  // namespace gemini::client
