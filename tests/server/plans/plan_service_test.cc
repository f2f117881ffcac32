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
using ::testing::HasSubstr;

absl::StatusOr<FoundTrace> Find(PlanService& service) {
  std::promise<absl::StatusOr<FoundTrace>> found;
  service.FindTrace({"space", "train", 0}, std::make_shared<PlanWait>(/*session=*/1, /*process=*/1),
                    [&](absl::StatusOr<FoundTrace> trace) { found.set_value(std::move(trace)); });
  return found.get_future().get();
}

TEST(PlanServiceTest, WhatWaitedTooLongForOthersIsRefusedAndNotBegun) {
  PlanService patient(ServerOptions{});
  ASSERT_OK_AND_ASSIGN(const FoundTrace none, Find(patient));
  EXPECT_FALSE(none.fd);
  PlanService impatient(ServerOptions{}, /*max_wait=*/absl::ZeroDuration());
  EXPECT_THAT(Find(impatient), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("the plans of other jobs took")));
  std::promise<absl::StatusOr<MadePlan>> made;
  PlanTask task;
  task.wait = std::make_shared<PlanWait>(/*session=*/1, /*process=*/1);
  impatient.MakePlan(std::move(task),
                     [&](absl::StatusOr<MadePlan> plan) { made.set_value(std::move(plan)); });
  EXPECT_THAT(made.get_future().get(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("Run fewer jobs")));
}

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
