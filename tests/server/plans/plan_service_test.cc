// SPDX-License-Identifier: Apache-2.0
#include "server/plans/plan_service.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;

// Whoever asks with many sessions holds another process up for one request.
TEST(PlanServiceTest, ProcessesTakeTurns) {
  PlanService service(ServerOptions{});
  std::promise<void> first_begun, all_queued, last_done;
  std::vector<int> served;
  const auto find = [&service](pid_t process, absl::AnyInvocable<void()> done) {
    service.FindTrace({"space", "train", 0}, std::make_shared<PlanWait>(/*session=*/1, process),
                      [done = std::move(done)](const auto&) mutable { done(); });
  };
  find(1, [&first_begun, &all_queued] {
    first_begun.set_value();
    all_queued.get_future().wait();
  });
  first_begun.get_future().wait();
  for (const int request : {10, 11, 12, 20, 21, 30}) {
    find(request / 10, [&served, request] { served.push_back(request); });
  }
  find(1, [&last_done] { last_done.set_value(); });
  all_queued.set_value();
  last_done.get_future().wait();
  EXPECT_THAT(served, ElementsAre(10, 20, 30, 11, 21, 12));
}

}  // namespace
}  // namespace gemini::server
