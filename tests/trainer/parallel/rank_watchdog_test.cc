// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, with a watchdog each. A job's end is noted, not carried out.
#include "trainer/parallel/rank_watchdog.h"

#include <condition_variable>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What the watchdogs of a test said, and how many ranks they ended.
class Ends {
 public:
  void Add(const std::string& why) {
    MutexLock lock(mutex_);
    if (num_ == 0) first_at_ = std::chrono::steady_clock::now();
    ++num_;
    if (!why.empty()) texts_.push_back(why);
    changed_.notify_all();
  }
  std::vector<std::string> Await(int num) {
    MutexLock lock(mutex_);
    while (num_ < num) mutex_.WaitFor(changed_);
    return texts_;
  }
  int num() {
    MutexLock lock(mutex_);
    return num_;
  }
  // When the first rank was ended.
  std::chrono::steady_clock::time_point first_at() {
    MutexLock lock(mutex_);
    return first_at_;
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  int num_ = 0;
  std::chrono::steady_clock::time_point first_at_;
  std::vector<std::string> texts_;
};

std::unique_ptr<RankWatchdog> Start(Communicator& me, absl::Duration limit, Ends& ends) {
  auto made = RankWatchdog::Start(
      me, RankAgreement(me),
      {.limit = limit, .end = [&ends](const std::string& why) { ends.Add(why); }});
  EXPECT_OK(made);
  return *std::move(made);
}

// All ranks stop together, as a program does.
void Stop(Communicator& me, RankWatchdog& watchdog) {
  watchdog.Stop();
  EXPECT_OK(RankAgreement(me).Agree(absl::OkStatus()));
}

TEST(RankWatchdogTest, ARankThatDoesNotComeIsNamedOnce) {
  Ends ends;
  RunThreadRanks(3, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    int64_t value = 1;
    Work work;
    if (me.rank() != 1) {
      work = me.AllReduce(me.world(), SumType::kFp64, &value, 1, "the missing sum");
    }
    // All ranks hear that the job is over, also that which did nothing.
    const std::vector<std::string> texts = ends.Await(3);
    ASSERT_EQ(texts.size(), 1);
    // Whoever finds an error now comes too late to say so, and not before the watcher is done.
    EXPECT_FALSE(watchdog->EndJob());
    EXPECT_THAT(texts[0], AllOf(HasSubstr("for 3s"), HasSubstr("\"the missing sum\""),
                                HasSubstr("waits for rank 1 (at ")));
    if (me.rank() == 1) {
      work = me.AllReduce(me.world(), SumType::kFp64, &value, 1, "the missing sum");
    }
    ASSERT_OK(work->Wait());
    Stop(me, *watchdog);
  });
  EXPECT_EQ(ends.num(), 3);
}

TEST(RankWatchdogTest, OneRankThatEndsTheJobSaysWhy) {
  Ends ends;
  std::atomic<int> num_first = 0;
  std::chrono::steady_clock::time_point said_at;
  RunThreadRanks(4, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(60), ends);
    // Two of them find the same at one time.
    if (me.rank() >= 2 && watchdog->EndJob()) {
      said_at = std::chrono::steady_clock::now();
      ++num_first;
    }
    EXPECT_THAT(ends.Await(2), ::testing::IsEmpty());
    Stop(me, *watchdog);
  });
  EXPECT_EQ(num_first, 1);
  // The others leave it time to say so: the first one's end would take the store along.
  EXPECT_GT(ends.first_at(), said_at + std::chrono::seconds(2));
  EXPECT_EQ(ends.num(), 2);  // The others, quietly.
}

TEST(RankWatchdogTest, RanksThatGoOnAreLeftAlone) {
  Ends ends;
  RunThreadRanks(3, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    double value = 1;
    // Longer than the limit, but each of them is short.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    for (bool more = true; more;) {
      ASSERT_OK(me.AllReduce(me.world(), SumType::kFp64, &value, 1, "sum")->Wait());
      int64_t goes_on = std::chrono::steady_clock::now() < end ? 1 : 0;
      ASSERT_OK(me.Broadcast(me.world(), &goes_on, sizeof(goes_on), 0, "more")->Wait());
      more = goes_on != 0;
    }
    Stop(me, *watchdog);
  });
  EXPECT_EQ(ends.num(), 0);
}

}  // namespace
}  // namespace gemini::trainer
