// SPDX-License-Identifier: Apache-2.0
// Whoever keeps the descriptors of plans and found traces does not keep the server's memory.
#include <sys/stat.h>

#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/byte_size.h"
#include "gemini/plan/trace_wire.h"
#include "server/embedded_server.h"
#include "tests/server/traces.h"
#include "tests/server/wire_client.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

constexpr int64_t kChunk = 4096;

class PlanAnswersTest : public ::testing::Test {
 protected:
  void Start(absl::Duration answer_life = absl::Minutes(1)) {
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = options.capacity_bytes[Tier::kHost] = 16 * kMiB;
    options.answer_life = answer_life;
    ASSERT_OK_AND_ASSIGN(server_, EmbeddedServer::Start(options));
  }
  WireClient Trainer(const std::string& space) {
    WireClient client(*server_->Connect());
    EXPECT_OK(client.Hello(space));
    EXPECT_OK(client.OpenLease({{16 * kChunk, kMiB, 0}}, {{16 * kChunk, kMiB, 0}}));
    EXPECT_OK(client.OpenSpace({.name = space, .num_bundles = 32, .host_slots = 200}));
    return client;
  }
  static int64_t SizeOf(const WireReply& reply) {
    struct stat info;
    return ::fstat(reply.fds.at(0).get(), &info) == 0 ? info.st_size : -1;
  }
  // Until a thread of the server has cut it.
  static void AwaitCut(const WireReply& reply) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (SizeOf(reply) != 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(SizeOf(reply), 0);
  }

  std::unique_ptr<EmbeddedServer> server_;
};

TEST_F(PlanAnswersTest, AnAnswerIsTakenBackAtTheNextOneAndAtTheEndOfItsSession) {
  Start();
  WireClient client = Trainer("job");
  ASSERT_OK(client.WriteTrace(EncodeTrace(StepTrace(8, kChunk))));
  ASSERT_OK_AND_ASSIGN(const WireReply plan, client.MakePlan({.device_bytes = 16 * kChunk}));
  ASSERT_OK_AND_ASSIGN(const WireReply first, client.FindTrace("job", "train", 0));
  EXPECT_EQ(SizeOf(plan), 0);
  EXPECT_GT(SizeOf(first), 0);
  ASSERT_OK_AND_ASSIGN(const WireReply second, client.FindTrace("job", "train", 0));
  EXPECT_EQ(SizeOf(first), 0);
  EXPECT_GT(SizeOf(second), 0);
  ASSERT_OK(client.CloseSession());
  // An observer without a lease hangs up: nothing else of it is waited for.
  WireClient observer(*server_->Connect());
  ASSERT_OK(observer.Hello("observer", wire::Role::kObserver));
  ASSERT_OK_AND_ASSIGN(const WireReply seen, observer.FindTrace("job", "train", 0));
  EXPECT_GT(SizeOf(seen), 0);
  observer.HangUp();
  // A thread of the server cuts them some time after the hang-up.
  AwaitCut(second);
  AwaitCut(seen);
}

// The life of an answer before it is no part of that.
TEST_F(PlanAnswersTest, AnAnswerIsTakenBackWhenItsLifeIsOver) {
  constexpr absl::Duration kLife = absl::Milliseconds(400);
  Start(kLife);
  WireClient client = Trainer("job");
  ASSERT_OK(client.WriteTrace(EncodeTrace(StepTrace(8, kChunk))));
  ASSERT_OK_AND_ASSIGN(const WireReply plan, client.MakePlan({.device_bytes = 16 * kChunk}));
  absl::SleepFor(kLife / 2);
  const absl::Time asked = absl::Now();
  ASSERT_OK_AND_ASSIGN(const WireReply found, client.FindTrace("job", "train", 0));
  AwaitCut(found);
  EXPECT_GE(absl::Now() - asked, kLife);
  EXPECT_EQ(SizeOf(plan), 0);
}

}  // namespace
}  // namespace gemini::server
