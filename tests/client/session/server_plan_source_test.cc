// SPDX-License-Identifier: Apache-2.0
#include "client/session/server_plan_source.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "gemini/byte_size.h"
#include "gemini/protocol.h"
#include "server/embedded_server.h"
#include "tests/server/traces.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using server::StepTrace;
using ::testing::HasSubstr;

constexpr int64_t kChunk = 4096;

class ServerPlanSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server::ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = kMiB;
    options.capacity_bytes[Tier::kHost] = kMiB;
    ASSERT_OK_AND_ASSIGN(server_, server::EmbeddedServer::Start(options));
    connection_ = Connect();
  }
  // A connection with a lease of 16 chunks.
  std::unique_ptr<Connection> Connect() {
    auto connection = std::make_unique<Connection>(*server_->Connect());
    EXPECT_OK(connection->Call(
        wire::Body::Hello,
        [](flatbuffers::FlatBufferBuilder& builder) {
          return wire::CreateHelloDirect(builder, kProtocolVersion, "test", wire::Role::kTrainer,
                                         "job")
              .Union();
        },
        wire::Body::HelloReply));
    const wire::TierBytes want(16 * kChunk, 0, 0);
    EXPECT_OK(connection->Call(
        wire::Body::OpenLease,
        [&](flatbuffers::FlatBufferBuilder& builder) {
          return wire::CreateOpenLease(builder, &want, &want).Union();
        },
        wire::Body::LeaseReply));
    return connection;
  }

  wire::CostModel Costs() {
    const absl::StatusOr<Reply> status = connection_->Call(
        wire::Body::GetStatus,
        [](flatbuffers::FlatBufferBuilder& builder) {
          return wire::CreateGetStatus(builder).Union();
        },
        wire::Body::StatusReply);
    EXPECT_OK(status);
    return *status->As<wire::StatusReply>()->costs();
  }

  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(ServerPlanSourceTest, APlanIsOfTheTraceThatWasSent) {
  ServerPlanSource source(*connection_, {.chunk_bytes = kChunk});
  const Trace trace = StepTrace(32, kChunk);
  ASSERT_OK_AND_ASSIGN(const Plan plan, source.MakePlan(trace, 16 * kChunk));
  EXPECT_EQ(plan.fingerprint, Fingerprint(trace));
  EXPECT_EQ(plan.num_positions(), trace.num_positions());
  EXPECT_EQ(plan.policy, PolicyOptions());
}

TEST_F(ServerPlanSourceTest, ThePolicyAndItsRefusalPassThrough) {
  ServerPlanSource cuda(*connection_,
                        {.chunk_bytes = kChunk, .policy = {.kind = PolicyKind::kCuda}});
  EXPECT_THAT(cuda.MakePlan(StepTrace(32, kChunk), 16 * kChunk),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // Four chunks each, with moments and gradients.
  ASSERT_OK_AND_ASSIGN(const Plan fits, cuda.MakePlan(StepTrace(4, kChunk), 16 * kChunk));
  EXPECT_EQ(fits.policy.kind, PolicyKind::kCuda);
  ServerPlanSource odd(*connection_, {.chunk_bytes = 100});
  EXPECT_THAT(odd.MakePlan(StepTrace(8, kChunk), 16 * kChunk),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of 4096")));
}

TEST_F(ServerPlanSourceTest, TheNextJobOfTheSameTensorsFindsTheTrace) {
  const Trace trace = StepTrace(8, kChunk);
  ServerPlanSource first(*connection_, {.chunk_bytes = kChunk});
  EXPECT_THAT(first.FindTrace("train", trace.tensors), IsOkAndHolds(std::nullopt));
  ASSERT_OK(first.MakePlan(trace, 16 * kChunk));
  const std::unique_ptr<Connection> later = Connect();
  ServerPlanSource second(*later, {.chunk_bytes = kChunk});
  ASSERT_OK_AND_ASSIGN(const std::optional<Trace> found, second.FindTrace("train", trace.tensors));
  EXPECT_EQ(found, trace);
  EXPECT_THAT(second.FindTrace("eval", trace.tensors), IsOkAndHolds(std::nullopt));
  EXPECT_THAT(second.FindTrace("train", StepTrace(9, kChunk).tensors), IsOkAndHolds(std::nullopt));
}

// What the server makes of a rate that a client measured: halfway to it, as far as a machine's rate
// may be from the calibrated one.
double Refreshed(double calibrated, double measured) {
  return (calibrated + std::clamp(measured, calibrated / 4, calibrated * 4)) / 2;
}

TEST_F(ServerPlanSourceTest, WhatTheTimelineSaysRefreshesTheCosts) {
  const auto timeline = std::make_unique<TimelineShm>();
  ServerPlanSource source(*connection_, {.chunk_bytes = kChunk, .timeline = timeline.get()});
  ASSERT_OK(source.MakePlan(StepTrace(8, kChunk), 16 * kChunk));
  const wire::CostModel measured = Costs();
  for (const auto& [lane, size_bytes] :
       {std::pair(TimelineLane::kUpdate, 80'000'000), {TimelineLane::kDeviceUpdate, 200'000'000}}) {
    WriteTimelineEvent(
        *timeline,
        {.lane = lane, .begin_ns = 1, .end_ns = 1 + 1'000'000'000, .size_bytes = size_bytes});
  }
  ASSERT_OK(source.MakePlan(StepTrace(8, kChunk), 16 * kChunk));
  const wire::CostModel refreshed = Costs();
  EXPECT_DOUBLE_EQ(refreshed.update_elements(), Refreshed(measured.update_elements(), 2e7));
  EXPECT_DOUBLE_EQ(refreshed.device_update_elements(),
                   Refreshed(measured.device_update_elements(), 5e7));
}

TEST_F(ServerPlanSourceTest, CopiesCountFromWhereTheirMemoryIsPinned) {
  const auto timeline = std::make_unique<TimelineShm>();
  const auto pins = std::make_shared<PinProgress>();
  ServerPlanSource source(*connection_,
                          {.chunk_bytes = kChunk, .timeline = timeline.get(), .pins = pins});
  EXPECT_EQ(source.epoch(), 0);
  WriteTimelineEvent(*timeline, {.lane = TimelineLane::kFetch,
                                 .begin_ns = 1,
                                 .end_ns = 1 + 1'000'000'000,
                                 .size_bytes = 80'000'000});
  ASSERT_OK(source.MakePlan(StepTrace(8, kChunk), 16 * kChunk));
  const double before = Costs().host_to_device();
  ASSERT_OK(source.MakePlan(StepTrace(8, kChunk), 16 * kChunk));
  EXPECT_EQ(Costs().host_to_device(), before);
  pins->resting_since_ns = 1;
  pins->num_rests = 1;
  EXPECT_EQ(source.epoch(), 1);
  ASSERT_OK(source.MakePlan(StepTrace(8, kChunk), 16 * kChunk));
  EXPECT_DOUBLE_EQ(Costs().host_to_device(), Refreshed(before, 8e7));
}

TEST_F(ServerPlanSourceTest, AServerThatIsGoneIsUnavailable) {
  ServerPlanSource source(*connection_, {.chunk_bytes = kChunk});
  server_.reset();
  EXPECT_THAT(source.MakePlan(StepTrace(8, kChunk), 16 * kChunk),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace gemini::client
