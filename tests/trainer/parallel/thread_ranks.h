// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process. What they exchange is copied from one's memory to the
// other's, once all of a group have come. Ranks that do not make the same exchange get an error.
// Those do, too, that wait for a rank whose communicator is gone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "trainer/parallel/communicator_host.h"
#include "trainer/parallel/rank_bell.h"

namespace gemini::trainer {

// Where the ranks' transports meet.
class ThreadMeetings {
 public:
  // An exchange of a group, by what the rank at each place brings to it.
  struct Meeting {
    struct Member {
      CollectiveKind kind = CollectiveKind::kAllGather;
      const std::byte* from = nullptr;
      int64_t bytes = 0;
      int64_t place = 0;
    };
    std::map<int64_t, Member> members;
    std::set<int64_t> done;  // Those at these places have taken what is theirs.
    int64_t num_left = 0;    // Know that all have.
  };
  struct Message {
    const std::byte* bytes = nullptr;
    int64_t size_bytes = 0;
    bool is_taken = false;
  };
  // Group, its lowest rank, and the number of the exchange.
  using MeetingKey = std::tuple<int64_t, int64_t, int64_t>;
  // Group, sender, receiver, tag, and the number of the message among those.
  using MessageKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

  // Returns the bell that a rank sleeps by.
  RankBell& BellOf(int64_t rank);
  // Wakes the ranks of a group that wait for others.
  void Ring(const RankGroup& group);
  // Marks a rank as gone. Ranks that wait for it notice the mark when they next look.
  void Leave(int64_t rank);
  // UNAVAILABLE: the rank is gone.
  absl::Status CheckIsHere(int64_t rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Mutex mutex;
  std::map<MeetingKey, Meeting> meetings ABSL_GUARDED_BY(mutex);
  std::map<MessageKey, Message> messages ABSL_GUARDED_BY(mutex);
  std::set<int64_t> gone ABSL_GUARDED_BY(mutex);  // Ranks.

 private:
  Mutex bells_mutex_;
  std::map<int64_t, RankBell> bells_ ABSL_GUARDED_BY(bells_mutex_);  // By rank; they stay.
};

// `rank` is the owner's.
std::unique_ptr<RankTransport> MakeThreadTransport(ThreadMeetings& meetings, int64_t rank);

// Runs `rank_main` in `num_ranks` threads, each with a communicator of its own.
inline void RunThreadRanks(int64_t num_ranks, const std::function<void(Communicator&)>& rank_main) {
  ThreadMeetings meetings;
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = CommunicatorHost::Make(rank, num_ranks,
                                         [&, rank] { return MakeThreadTransport(meetings, rank); });
      ASSERT_OK(made);
      rank_main(**made);
      made->reset();
      meetings.Leave(rank);
    });
  }
}

}  // namespace gemini::trainer
