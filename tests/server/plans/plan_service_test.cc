// SPDX-License-Identifier: Apache-2.0
#include "server/plans/plan_service.h"

#include <future>
#include <memory>
#include <utility>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<FoundTrace> Find(PlanService& service) {
  std::promise<absl::StatusOr<FoundTrace>> found;
  service.FindTrace({"space", "train", 0}, std::make_shared<PlanWait>(),
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
  task.wait = std::make_shared<PlanWait>();
  impatient.MakePlan(std::move(task),
                     [&](absl::StatusOr<MadePlan> plan) { made.set_value(std::move(plan)); });
  EXPECT_THAT(made.get_future().get(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("Run fewer jobs")));
}

}  // namespace
}  // namespace gemini::server
