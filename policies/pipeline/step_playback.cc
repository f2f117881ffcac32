// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/step_playback.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gemini::policies {
namespace {

using Kind = PlayedExchange::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();
// Work that is left behind rounding is done.
constexpr double kDoneSeconds = 1e-12;

bool IsTime(double seconds) { return seconds >= 0 && std::isfinite(seconds); }

// How far an exchange of a rank is.
enum class Progress : uint8_t { kUnknown, kQueued, kBegun, kRuns, kDone };

// An exchange of several ranks.
struct Meeting {
  // Who has begun it: a rank, and the index of its exchange.
  std::vector<std::pair<size_t, int32_t>> begun;
  double latency_seconds = 0;
};

// Names an exchange among those that its ranks have with each other: kind, group, who, tag, and
// which of them.
using MeetingKey = std::tuple<bool, int64_t, std::vector<int64_t>, int64_t, int64_t>;

struct Rank {
  size_t next = 0;          // Of its actions.
  double left_seconds = 0;  // Of one that computes.
  bool is_computing = false;
  std::deque<int32_t> queue;  // Exchanges that it has not begun.
  bool in_collective = false;
  std::vector<Progress> progress;  // By exchange.
  std::vector<double> work_left;   // The same, of those that run.
  std::vector<int32_t> working;    // Exchanges whose latency is over.
  std::map<MeetingKey, int64_t> num_begun;
  PlayedRank played;
};

class StepPlayback {
 public:
  StepPlayback(absl::Span<const RankActions> steps, double processors)
      : steps_(steps), processors_(processors), ranks_(steps.size()) {
    for (size_t i = 0; i < steps.size(); ++i) {
      ranks_[i].progress.resize(steps[i].exchanges.size());
      ranks_[i].work_left.resize(steps[i].exchanges.size());
    }
  }

  absl::Status Check() const {
    if (!(processors_ > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(processors_, " processors: it is above 0"));
    }
    for (size_t rank = 0; rank < steps_.size(); ++rank) {
      std::vector<bool> begun(steps_[rank].exchanges.size());
      for (const PlayedExchange& exchange : steps_[rank].exchanges) {
        const bool are_ranks = std::ranges::all_of(exchange.ranks, [this](int64_t other) {
          return other >= 0 && other < static_cast<int64_t>(steps_.size());
        });
        const bool is_one = exchange.kind == Kind::kCollective || exchange.ranks.size() == 1;
        if (!are_ranks || !is_one || !IsTime(exchange.latency_seconds) ||
            !IsTime(exchange.work_seconds)) {
          return Bad(rank, absl::StrCat("exchange ", exchange.site, " with ranks ",
                                        absl::StrJoin(exchange.ranks, ", ")));
        }
      }
      for (const RankAction& action : steps_[rank].actions) {
        if (action.kind == RankAction::Kind::kCompute) {
          if (!IsTime(action.seconds)) return Bad(rank, absl::StrCat(action.seconds, " seconds"));
          continue;
        }
        const auto index = static_cast<size_t>(action.exchange);
        const bool begins = action.kind == RankAction::Kind::kBegin;
        if (index >= begun.size() || begun[index] == begins) {
          return Bad(rank, absl::StrCat("exchange ", action.exchange, " of ", begun.size(),
                                        begins ? " is begun twice" : " is awaited and not begun"));
        }
        begun[index] = true;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<PlayedRank>> Play() {
    for (;;) {
      while (Settle()) {
      }
      double num_busy = 0;
      double least_left = kNever;
      ForEachWork([&](double& left) {
        ++num_busy;
        least_left = std::min(least_left, left);
      });
      const double speed = std::min(1.0, processors_ / std::max(num_busy, 1.0));
      double step = least_left / speed;
      if (!latencies_.empty()) step = std::min(step, latencies_.begin()->first - now_);
      if (step == kNever) break;
      Account(step, speed);
      now_ += step;
      ForEachWork([&](double& left) { left -= step * speed; });
    }
    if (std::ranges::all_of(ranks_, [this](const Rank& rank) { return IsOver(rank); })) {
      std::vector<PlayedRank> played;
      for (const Rank& rank : ranks_) played.push_back(rank.played);
      return played;
    }
    return Deadlock();
  }

 private:
  static absl::Status Bad(size_t rank, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("what rank ", rank, " does: ", what));
  }
  const RankActions& StepOf(const Rank& rank) const { return steps_[&rank - ranks_.data()]; }
  bool IsOver(const Rank& rank) const { return rank.next == StepOf(rank).actions.size(); }

  // Calls `use` with what is left of each work that goes on.
  template <typename Use>
  void ForEachWork(const Use& use) {
    for (Rank& rank : ranks_) {
      if (rank.is_computing) use(rank.left_seconds);
      for (const int32_t exchange : rank.working) use(rank.work_left[exchange]);
    }
  }

  // Does what takes no time now. Returns whether there was any.
  bool Settle() {
    bool settled = false;
    while (!latencies_.empty() && latencies_.begin()->first <= now_) {
      const auto [rank, exchange] = latencies_.begin()->second;
      latencies_.erase(latencies_.begin());
      ranks_[rank].working.push_back(exchange);
      settled = true;
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      settled |= std::erase_if(rank.working, [&](int32_t exchange) {
                   if (rank.work_left[exchange] > kDoneSeconds) return false;
                   rank.progress[exchange] = Progress::kDone;
                   rank.in_collective &= steps_[i].exchanges[exchange].kind != Kind::kCollective;
                   return true;
                 }) > 0;
      settled |= BeginQueued(i);
      settled |= GoOn(rank);
    }
    return settled;
  }

  // Begins the exchanges of a rank whose turn it is.
  bool BeginQueued(size_t i) {
    Rank& rank = ranks_[i];
    bool begun = false;
    while (!rank.queue.empty()) {
      const int32_t index = rank.queue.front();
      const PlayedExchange& exchange = steps_[i].exchanges[index];
      const bool is_collective = exchange.kind == Kind::kCollective;
      if (is_collective && rank.in_collective) break;
      rank.in_collective |= is_collective;
      rank.queue.pop_front();
      rank.progress[index] = Progress::kBegun;
      Join(i, index);
      begun = true;
    }
    return begun;
  }

  // Has a rank take part in an exchange. With the last one it runs.
  void Join(size_t i, int32_t index) {
    const PlayedExchange& exchange = steps_[i].exchanges[index];
    const bool is_message = exchange.kind != Kind::kCollective;
    std::vector<int64_t> who = exchange.ranks;
    if (is_message) {
      who.insert(exchange.kind == Kind::kSend ? who.begin() : who.end(), static_cast<int64_t>(i));
    }
    MeetingKey key = {is_message, exchange.group, std::move(who), exchange.tag, 0};
    const int64_t number = ++ranks_[i].num_begun[key];
    std::get<4>(key) = number;
    Meeting& meeting = meetings_[key];
    meeting.begun.push_back({i, index});
    if (exchange.kind != Kind::kSend) {
      meeting.latency_seconds = std::max(meeting.latency_seconds, exchange.latency_seconds);
    }
    if (meeting.begun.size() < std::get<2>(key).size()) return;
    for (const auto& [rank, its_index] : meeting.begun) {
      ranks_[rank].progress[its_index] = Progress::kRuns;
      ranks_[rank].work_left[its_index] = steps_[rank].exchanges[its_index].work_seconds;
      latencies_.insert({now_ + meeting.latency_seconds, {rank, its_index}});
    }
    meetings_.erase(key);
  }

  // Lets a rank do what it can do now.
  bool GoOn(Rank& rank) {
    const RankActions& step = StepOf(rank);
    bool went_on = false;
    for (; rank.next < step.actions.size(); ++rank.next) {
      const RankAction& action = step.actions[rank.next];
      if (action.kind == RankAction::Kind::kCompute) {
        if (!std::exchange(rank.is_computing, true)) rank.left_seconds = action.seconds;
        if (rank.left_seconds > kDoneSeconds) break;
        rank.is_computing = false;
      } else if (action.kind == RankAction::Kind::kBegin) {
        rank.queue.push_back(action.exchange);
        rank.progress[action.exchange] = Progress::kQueued;
      } else if (rank.progress[action.exchange] != Progress::kDone) {
        break;
      }
      went_on = true;
    }
    return went_on;
  }

  // Notes where the next `seconds` of each rank go.
  void Account(double seconds, double speed) {
    for (Rank& rank : ranks_) {
      if (IsOver(rank)) continue;
      PlayedRank& played = rank.played;
      played.end_seconds += seconds;
      if (rank.is_computing) {
        played.computing_seconds += seconds * speed;
        played.sharing_seconds += seconds * (1 - speed);
        continue;
      }
      const RankAction& waits = StepOf(rank).actions[rank.next];
      const bool runs = rank.progress[waits.exchange] == Progress::kRuns;
      (runs ? played.exchange_seconds : played.idle_seconds) += seconds;
    }
  }

  absl::Status Deadlock() const {
    std::string blocked;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (IsOver(ranks_[i])) continue;
      const PlayedExchange& exchange =
          steps_[i].exchanges[steps_[i].actions[ranks_[i].next].exchange];
      const bool is_queued = ranks_[i].progress[exchange_index(i)] == Progress::kQueued;
      absl::StrAppend(&blocked, "; rank ", i, " waits at its action ", ranks_[i].next, " for ",
                      exchange.site, " with ", exchange.ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(exchange.ranks, ", "),
                      is_queued ? ", which is behind a collective that does not end" : "");
    }
    return absl::InvalidArgumentError(absl::StrCat("the step would never end", blocked));
  }
  size_t exchange_index(size_t i) const {
    return static_cast<size_t>(steps_[i].actions[ranks_[i].next].exchange);
  }

  const absl::Span<const RankActions> steps_;
  const double processors_;
  std::vector<Rank> ranks_;
  std::map<MeetingKey, Meeting> meetings_;  // For which ranks still wait.
  // When latencies end: whose, and of which exchange.
  std::multimap<double, std::pair<size_t, int32_t>> latencies_;
  double now_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<PlayedRank>> PlayStep(absl::Span<const RankActions> ranks,
                                                 double processors) {
  StepPlayback playback(ranks, processors);
  if (absl::Status status = playback.Check(); !status.ok()) return status;
  return playback.Play();
}

}  // namespace gemini::policies
