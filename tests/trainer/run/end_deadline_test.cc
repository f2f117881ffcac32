// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/end_deadline.h"

#include <atomic>
#include <chrono>
#include <future>
#include <optional>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using std::chrono::steady_clock;

TEST(EndDeadlineTest, AnEndThatTakesTooLongIsEndedOnceBehindTheLimit) {
  const auto began = steady_clock::now();
  std::promise<steady_clock::time_point> ended;
  std::atomic<int> num_ended = 0;
  {
    const EndDeadline deadline(absl::Milliseconds(50), [&] {
      if (++num_ended == 1) ended.set_value(steady_clock::now());
    });
    EXPECT_GE(ended.get_future().get() - began, std::chrono::milliseconds(50));
  }
  EXPECT_EQ(num_ended, 1);
}

TEST(EndDeadlineTest, AnEndInTimeIsLeftAlone) {
  const auto began = steady_clock::now();
  std::atomic<int> num_ended = 0;
  {
    const EndDeadline deadline(absl::Minutes(1), [&] { ++num_ended; });
  }
  EXPECT_EQ(num_ended, 0);
  EXPECT_LT(steady_clock::now() - began, std::chrono::seconds(30));  // It did not wait for it.
}

// The last moment: the process may still be there when its owner comes to an end.
TEST(EndDeadlineTest, TheEndOfTheOwnerWaitsForWhatIsBeingCalled) {
  std::promise<void> is_called, may_return;
  std::atomic<bool> has_returned = false;
  std::optional<EndDeadline> deadline;
  deadline.emplace(absl::ZeroDuration(), [&] {
    is_called.set_value();
    may_return.get_future().wait();
    has_returned = true;
  });
  is_called.get_future().wait();
  const std::jthread other([&] { may_return.set_value(); });
  deadline.reset();
  EXPECT_TRUE(has_returned);
}

}  // namespace
}  // namespace gemini::trainer
