// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, with a watchdog each. A job's end is noted, not carried out.
#include "trainer/parallel/rank_watchdog.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <optional>
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
  // Returns whether a rank was ended within that time.
  bool AwaitAny(std::chrono::seconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    MutexLock lock(mutex_);
    while (num_ == 0 && std::chrono::steady_clock::now() < end) mutex_.WaitUntil(changed_, end);
    return num_ > 0;
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

TEST(RankWatchdogTest, AMessageThatDoesNotComeNamesTheRankThatOthersWaitForAtLast) {
  Ends ends;
  RunThreadRanks(4, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    int64_t value = 1;
    Work work;
    std::optional<MessageWait> wait;
    // Ranks 3, 2 and 1 wait for the one before each, and rank 0 lives and sends nothing.
    if (me.rank() > 0) {
      work = me.Receive(me.world(), &value, sizeof(value), me.rank() - 1, /*tag=*/0, "a value");
      wait.emplace(me, CollectiveKind::kReceive, me.rank() - 1, "a value");
    }
    const std::vector<std::string> texts = ends.Await(4);
    ASSERT_EQ(texts.size(), 1);
    EXPECT_THAT(texts[0], AllOf(HasSubstr("for 3s a receive of \"a value\" waits for rank "),
                                HasSubstr("rank 0: --collective-timeout")));
    wait.reset();
    if (me.rank() + 1 < me.num_ranks()) {
      EXPECT_OK(
          me.Send(me.world(), &value, sizeof(value), me.rank() + 1, /*tag=*/0, "a value")->Wait());
    }
    if (work != nullptr) {
      ASSERT_OK(work->Wait());
    }
    Stop(me, *watchdog);
  });
}

// Rank 1 sends messages to rank 0 for longer than the limit, as the last ranks of a long pipeline
// work before the first one gets a gradient.
void GoOn(Communicator& me) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(7);
  for (int64_t more = 1; more != 0;) {
    if (me.rank() == 1) {
      more = std::chrono::steady_clock::now() < end ? 1 : 0;
      ASSERT_OK(me.Send(me.world(), &more, sizeof(more), 0, /*tag=*/0, "more")->Wait());
    } else {
      ASSERT_OK(me.Receive(me.world(), &more, sizeof(more), 1, /*tag=*/0, "more")->Wait());
    }
  }
}

TEST(RankWatchdogTest, AMessageMayComeLateWhileItsRankGoesOn) {
  Ends ends;
  RunThreadRanks(3, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    int64_t value = 1;
    if (me.rank() == 2) {
      const MessageWait wait(me, CollectiveKind::kReceive, 1, "the last value");
      ASSERT_OK(me.Receive(me.world(), &value, sizeof(value), 1, /*tag=*/1, "value")->Wait());
    } else {
      GoOn(me);
      if (me.rank() == 1) {
        ASSERT_OK(me.Send(me.world(), &value, sizeof(value), 2, /*tag=*/1, "value")->Wait());
      }
    }
    Stop(me, *watchdog);
  });
  EXPECT_EQ(ends.num(), 0);
}

TEST(RankWatchdogTest, ACollectiveMayWaitWhileThoseWhoAreMissingGoOn) {
  Ends ends;
  RunThreadRanks(4, [&](Communicator& me) {
    const RankGroup* pair = *me.MakeGroup("pair", {{0, 1}, {2, 3}});
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    int64_t value = 1;
    // Rank 2 waits for rank 3, which waits for a message of rank 1.
    if (pair->ranks.front() == 0) GoOn(me);
    if (me.rank() == 1) {
      ASSERT_OK(me.Send(me.world(), &value, sizeof(value), 3, /*tag=*/1, "value")->Wait());
    } else if (me.rank() == 3) {
      const MessageWait wait(me, CollectiveKind::kReceive, 1, "the last value");
      ASSERT_OK(me.Receive(me.world(), &value, sizeof(value), 1, /*tag=*/1, "value")->Wait());
    }
    ASSERT_OK(me.AllReduce(*pair, SumType::kFp64, &value, 1, "the sum of a step")->Wait());
    Stop(me, *watchdog);
  });
  EXPECT_EQ(ends.num(), 0);
}

TEST(RankWatchdogTest, RanksThatWaitForEachOtherAreNamedAsACircle) {
  Ends ends;
  RunThreadRanks(2, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    std::optional<MessageWait> wait;
    wait.emplace(me, CollectiveKind::kReceive, 1 - me.rank(), "a value");
    const std::vector<std::string> texts = ends.Await(2);
    ASSERT_EQ(texts.size(), 1);
    EXPECT_THAT(
        texts[0],
        ::testing::AnyOf(HasSubstr("rank 0, which waits for rank 1, which waits for rank 0:"),
                         HasSubstr("rank 1, which waits for rank 0, which waits for rank 1:")));
    wait.reset();
    Stop(me, *watchdog);
  });
}

TEST(RankWatchdogTest, WhoWaitsInACollectiveIsNotBlamedForItsMessage) {
  Ends ends;
  RunThreadRanks(3, [&](Communicator& me) {
    const RankGroup* pair = *me.MakeGroup("pair", {{0, 1}, {2}});
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    int64_t value = 1;
    Work work;
    std::optional<MessageWait> wait;
    // Rank 0 does not come to the sum, so rank 1 does not send what rank 2 waits for.
    if (me.rank() == 1) work = me.AllReduce(*pair, SumType::kFp64, &value, 1, "the missing sum");
    if (me.rank() == 2) wait.emplace(me, CollectiveKind::kReceive, 1, "a value");
    const std::vector<std::string> texts = ends.Await(3);
    ASSERT_EQ(texts.size(), 1);
    EXPECT_THAT(texts[0],
                AllOf(HasSubstr("\"the missing sum\""), HasSubstr("waits for rank 0 (at ")));
    wait.reset();
    if (me.rank() == 0) work = me.AllReduce(*pair, SumType::kFp64, &value, 1, "the missing sum");
    if (work != nullptr) {
      ASSERT_OK(work->Wait());
    }
    Stop(me, *watchdog);
  });
}

TEST(RankWatchdogTest, AWaitThatNobodyNotedHasNoLimit) {
  Ends ends;
  RunThreadRanks(2, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(3), ends);
    int64_t value = 1;
    if (me.rank() == 1) {
      // As one that serves the first rank, which writes files for longer than the limit. What was
      // waited for before does not count.
      { const MessageWait over(me, CollectiveKind::kReceive, 0, "a value"); }
      ASSERT_OK(me.Receive(me.world(), &value, sizeof(value), 0, /*tag=*/0, "a value")->Wait());
    } else {
      EXPECT_FALSE(ends.AwaitAny(std::chrono::seconds(6)));
      ASSERT_OK(me.Send(me.world(), &value, sizeof(value), 1, /*tag=*/0, "a value")->Wait());
    }
    Stop(me, *watchdog);
  });
  EXPECT_EQ(ends.num(), 0);
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

TEST(RankWatchdogTest, ARankThatHasHeardOfTheEndBeforeItsOwnErrorEndsByItself) {
  Ends ends;
  RunThreadRanks(2, [&](Communicator& me) {
    const auto watchdog = Start(me, absl::Seconds(60), ends);
    if (me.rank() == 0) {
      EXPECT_TRUE(watchdog->EndJob());
    }
    EXPECT_OK(RankAgreement(me).Agree(absl::OkStatus()));
    if (me.rank() == 1) {
      // Two beats: its watchdog hears of the other's end, and does not end this rank yet.
      EXPECT_FALSE(ends.AwaitAny(std::chrono::seconds(1)));
      EXPECT_FALSE(watchdog->EndJob());
    }
    Stop(me, *watchdog);
  });
  EXPECT_EQ(ends.num(), 0);
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
