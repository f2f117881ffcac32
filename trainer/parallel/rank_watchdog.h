// SPDX-License-Identifier: Apache-2.0
// Ends a job whose ranks can no longer go on together, and says why. MPI waits for ever for a rank
// that does not come, and tells nobody which.
// Found:  a collective that has not moved on for the limit (names ranks that have not begun it), or
//         a message of a step that has not come, or was not taken, for as long (names those who
//         wait for each other for it), while none of these, and none whose message they await, has
//         begun anything; a rank that has not been heard of, as one that is stopped; a rank that
//         says that it ends the job.
// How:    each rank tells twice a second, in a store of the first rank's, how many collectives and
//         messages it has begun and whose message it waits for. The store goes its own way, so that
//         it works while MPI waits.
// Thread: two of its own: one for the store, which may never answer, and one that looks at clocks.
// Source: the store is LibTorch's TCPStore. If all ranks are on one machine it listens to that
//         alone; else to all, and trusts whom it hears, as MPI does.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gemini/system/mutex.h"
#include "torch/csrc/distributed/c10d/Store.hpp"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_report.h"

namespace gemini::trainer {

struct WatchdogOptions {
  absl::Duration limit;     // Of silence or of a wait, behind which a rank counts as lost.
  bool one_machine = true;  // All ranks are on one.
  // Called once, on a thread of the watchdog's, when the job is over: ends the process. `why` is
  // empty in ranks that know that another was the first to find it. Where the store does not
  // answer, several ranks have one.
  std::function<void(const std::string& why)> end;
};

class RankWatchdog {
 public:
  // COLLECTIVE. The communicator outlives this. UNAVAILABLE: the store cannot be reached.
  static absl::StatusOr<std::unique_ptr<RankWatchdog>> Start(Communicator& communicator,
                                                             const RankAgreement& ranks,
                                                             const WatchdogOptions& options);
  ~RankWatchdog();  // Stops.

  // Stops watching, and waits for the store's last answer. The ranks do that together: the first
  // one's store ends with it.
  void Stop();
  // Tells the others that this rank ends the job. Returns whether this rank is to say why: it is
  // the first, or the store does not say who is. Blocks while the store is asked, for some seconds
  // at most. WatchdogOptions::end is not called any more.
  bool EndJob();

 private:
  using Clock = std::chrono::steady_clock;
  // What was last heard of a rank.
  struct Heard {
    RankReport report;
    Clock::time_point since;    // When the report changed,
    Clock::time_point went_on;  // and when what it has begun did.
  };
  enum class Ends : uint8_t { kNo, kAsked, kFirst, kLater };

  RankWatchdog(Communicator& communicator, WatchdogOptions options);
  void TellAndHear();           // The thread of the store.
  void Exchange(int64_t beat);  // Its work, once.
  void Watch();                 // The thread of the clocks.
  std::optional<std::string> Judge(Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Missing(const CollectiveUnderWay& waiting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Missing(const AwaitedMessage& message) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many collectives of a group a rank has begun.
  int64_t NumIssued(int64_t rank, int64_t group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the ranks that have not begun it.
  std::vector<int64_t> MissingRanks(const CollectiveUnderWay& waiting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the rank, whose message it waits for, whose that one waits for, and so on. The last one
  // waits for no message, or is silent, or waits for one of them.
  std::vector<int64_t> ChainOf(int64_t rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether one of them has begun anything within the limit.
  bool GoesOn(const std::vector<int64_t>& chain, Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it is late, and those for whom it waits do not go on.
  bool IsLate(const CollectiveUnderWay& waiting, Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLate(const AwaitedMessage& message, Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether this rank is the first to end the job; kAsked: the store does not say so within
  // a few seconds.
  Ends AskIfFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits to be ended by the launcher, for that time.
  void LetTheFirstSpeak(Clock::duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Communicator& communicator_;
  const WatchdogOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool others_end_ ABSL_GUARDED_BY(mutex_) = false;  // Another rank has ended the job.
  Ends ends_ ABSL_GUARDED_BY(mutex_) = Ends::kNo;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;      // The watcher is about to call `end`.
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;      // It has, and `end` has come back.
  std::vector<Heard> heard_ ABSL_GUARDED_BY(mutex_);    // By rank.
  Clock::time_point answered_ ABSL_GUARDED_BY(mutex_);  // When the store did, last.
  Clock::time_point began_ ABSL_GUARDED_BY(mutex_);     // To watch, or to go on after a stop.
  std::jthread teller_;
  std::jthread watcher_;
};

}  // namespace gemini::trainer
