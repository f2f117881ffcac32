// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/status_macros.h"
#include "gemini/system/unique_fd.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#include "trainer/parallel/rank_environment.h"
#include "trainer/parallel/rank_store.h"

namespace gemini::trainer {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(500);
// How long a rank that ends the job waits for the store to say whether it is the first. A launcher
// takes a second or two to end the others, more on a busy machine.
constexpr auto kPatience = std::chrono::seconds(3);
constexpr char kEnds[] = "ranks that end the job";
constexpr char kLimit[] = ": --collective-timeout is the limit";

std::string KeyOf(int64_t rank) { return absl::StrCat("rank ", rank); }

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenStore(const RankAgreement& ranks,
                                                          bool one_machine) {
  SilenceWarningsOfStores();
  Rendezvous place;
  absl::StatusOr<UniqueFd> listening = absl::UnavailableError("");
  if (ranks.is_first()) listening = ListenForRanks(one_machine, place);
  GEMINI_RETURN_IF_ERROR(ranks.Agree(ranks.is_first() ? listening.status() : absl::OkStatus()));
  GEMINI_RETURN_IF_ERROR(SharePlace(ranks, place));
  c10::intrusive_ptr<c10d::Store> store;
  absl::Status opened;
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(place.port);
    options.isServer = ranks.is_first();
    options.waitWorkers = false;
    options.timeout = std::chrono::seconds(30);
    if (ranks.is_first()) options.masterListenFd = listening->Release();
    store = c10::make_intrusive<c10d::PrefixStore>(
        place.key_prefix, c10::make_intrusive<c10d::TCPStore>(place.host, options));
  } catch (const std::exception& error) {
    opened = absl::UnavailableError(
        absl::StrCat("the ranks' watchdog, at ", place.host, ":", place.port, ": ", error.what()));
  }
  GEMINI_RETURN_IF_ERROR(ranks.Agree(opened));
  return store;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankWatchdog>> RankWatchdog::Start(Communicator& communicator,
                                                                  const RankAgreement& ranks,
                                                                  const WatchdogOptions& options) {
  std::unique_ptr<RankWatchdog> made(new RankWatchdog(communicator, options));
  GEMINI_ASSIGN_OR_RETURN(made->store_, OpenStore(ranks, options.one_machine));
  absl::Status told;
  try {
    made->store_->set(KeyOf(ranks.rank()), Bytes(ToText(RankReport())));
  } catch (const std::exception& error) {
    told = absl::UnavailableError(absl::StrCat("the ranks' watchdog: ", error.what()));
  }
  // Behind this all of them have told something.
  GEMINI_RETURN_IF_ERROR(ranks.Agree(told));
  {
    MutexLock lock(made->mutex_);
    made->answered_ = Clock::now();
    made->heard_.resize(static_cast<size_t>(ranks.num_ranks()));
    for (Heard& heard : made->heard_) heard.since = heard.went_on = made->answered_;
  }
  made->teller_ = std::jthread([here = made.get()] { here->TellAndHear(); });
  made->watcher_ = std::jthread([here = made.get()] { here->Watch(); });
  return made;
}

RankWatchdog::RankWatchdog(Communicator& communicator, WatchdogOptions options)
    : communicator_(communicator), options_(std::move(options)) {}

RankWatchdog::~RankWatchdog() { Stop(); }

void RankWatchdog::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  if (teller_.joinable()) teller_.join();
}

bool RankWatchdog::EndJob() {
  MutexLock lock(mutex_);
  if (ends_ != Ends::kNo || is_ending_) {
    // The watcher ends the job, and may have something to say: who asked here must not be faster.
    while (!has_ended_) mutex_.WaitFor(changed_);
    return false;
  }
  // Where nobody can say who is the first, two messages are better than none.
  if (AskIfFirst() != Ends::kLater) return true;
  LetTheFirstSpeak(kPatience);
  return false;
}

void RankWatchdog::LetTheFirstSpeak(Clock::duration time) {
  // A rank that ends has the launcher end all, and the first rank's store is gone with it. So only
  // where nobody ends this one for some time it ends by itself.
  const Clock::time_point deadline = Clock::now() + time;
  while (!stopping_ && Clock::now() < deadline) mutex_.WaitUntil(changed_, deadline);
}

RankWatchdog::Ends RankWatchdog::AskIfFirst() {
  ends_ = Ends::kAsked;
  changed_.notify_all();
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (ends_ == Ends::kAsked && Clock::now() < deadline) mutex_.WaitUntil(changed_, deadline);
  return ends_;
}

void RankWatchdog::TellAndHear() {
  ::pthread_setname_np(::pthread_self(), "gemini-tell");
  for (int64_t beat = 1;; ++beat) {
    bool answered = true;
    try {
      Exchange(beat);
    } catch (const std::exception&) {
      answered = false;  // The clock tells for how long.
    }
    const Clock::time_point next = Clock::now() + kBeat;
    MutexLock lock(mutex_);
    while (!stopping_ && (ends_ != Ends::kAsked || !answered) && Clock::now() < next) {
      mutex_.WaitUntil(changed_, next);
    }
    if (stopping_) return;
  }
}

void RankWatchdog::Exchange(int64_t beat) {
  bool asked = false;
  {
    MutexLock lock(mutex_);
    asked = ends_ == Ends::kAsked;
  }
  const int64_t num_ends = store_->add(kEnds, asked ? 1 : 0);
  {
    // At once: the store may be gone before it answers again.
    MutexLock lock(mutex_);
    if (asked) {
      ends_ = num_ends == 1 ? Ends::kFirst : Ends::kLater;
    } else if (num_ends > 0) {
      others_end_ = true;
    }
    changed_.notify_all();
  }
  const std::optional<AwaitedMessage> message = communicator_.awaited_message();
  const Communicator::Begun begun = communicator_.begun();
  const RankReport own = {.beat = beat,
                          .awaited = message.has_value() ? message->rank
                                     : communicator_.under_way().has_value()
                                         ? RankReport::kCollective
                                         : RankReport::kNone,
                          .num_messages = begun.num_messages,
                          .num_issued = begun.num_collectives};
  store_->set(KeyOf(communicator_.rank()), Bytes(ToText(own)));
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < communicator_.num_ranks(); ++rank) keys.push_back(KeyOf(rank));
  const std::vector<std::vector<uint8_t>> texts = store_->multiGet(keys);

  MutexLock lock(mutex_);
  answered_ = Clock::now();
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    RankReport report = ParseRankReport(std::string(texts[rank].begin(), texts[rank].end()),
                                        communicator_.num_ranks());
    Heard& heard = heard_[rank];
    if (report == heard.report) continue;
    heard.since = answered_;
    if (report.num_messages != heard.report.num_messages ||
        report.num_issued != heard.report.num_issued) {
      heard.went_on = answered_;
    }
    heard.report = std::move(report);
  }
  changed_.notify_all();
}

void RankWatchdog::Watch() {
  ::pthread_setname_np(::pthread_self(), "gemini-watch");
  std::string why;
  {
    MutexLock lock(mutex_);
    Clock::time_point looked = Clock::now();
    while (true) {
      const Clock::time_point now = Clock::now();
      if (now - std::exchange(looked, now) > 4 * kBeat) {
        // This process itself was stopped: it has not waited for anybody.
        began_ = answered_ = now;
        for (Heard& heard : heard_) heard.since = heard.went_on = now;
      }
      if (stopping_ || ends_ != Ends::kNo) return;
      if (others_end_) {
        LetTheFirstSpeak(kPatience);
        if (ends_ != Ends::kNo) return;  // The program has found an error too, and ends by itself.
        break;
      }
      if (std::optional<std::string> found = Judge(now)) {
        // A store that has been silent for that long is not asked any more.
        if (now - answered_ > absl::ToChronoNanoseconds(options_.limit)) {
          ends_ = Ends::kAsked;
        } else {
          AskIfFirst();
        }
        // Where the store does not answer the first rank is gone, and the second one says so. If
        // the launcher has not ended this rank long after that, nobody did.
        if (ends_ == Ends::kAsked && communicator_.rank() > 1) {
          LetTheFirstSpeak(2 * kPatience);
        } else if (ends_ == Ends::kLater) {
          LetTheFirstSpeak(kPatience);
        }
        if (ends_ != Ends::kLater) why = *std::move(found);
        break;
      }
      mutex_.WaitUntil(changed_, Clock::now() + kBeat);
    }
    is_ending_ = true;
  }
  options_.end(why);
  MutexLock lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

std::optional<std::string> RankWatchdog::Judge(Clock::time_point now) const {
  const auto limit = absl::ToChronoNanoseconds(options_.limit);
  const std::string for_so_long = absl::FormatDuration(options_.limit);
  const std::optional<CollectiveUnderWay> waiting = communicator_.under_way();
  const std::optional<AwaitedMessage> message = communicator_.awaited_message();
  if (now - answered_ > limit) {
    return absl::StrCat("rank 0 has not answered for ", for_so_long);
  }
  for (size_t rank = 0; rank < heard_.size(); ++rank) {
    // While the store does not answer nobody is heard of.
    if (answered_ - heard_[rank].since <= limit) continue;
    return absl::StrCat("rank ", rank, " has not been heard of for ", for_so_long,
                        waiting.has_value()   ? absl::StrCat(": ", Missing(*waiting))
                        : message.has_value() ? absl::StrCat(": ", Missing(*message))
                                              : "");
  }
  if (waiting.has_value() && IsLate(*waiting, now)) {
    return absl::StrCat("for ", for_so_long, " ", Missing(*waiting), kLimit);
  }
  if (message.has_value() && IsLate(*message, now)) {
    return absl::StrCat("for ", for_so_long, " ", Missing(*message), kLimit);
  }
  return std::nullopt;
}

int64_t RankWatchdog::NumIssued(int64_t rank, int64_t group) const {
  const std::vector<int64_t>& issued = heard_[static_cast<size_t>(rank)].report.num_issued;
  return static_cast<size_t>(group) < issued.size() ? issued[static_cast<size_t>(group)] : 0;
}

std::vector<int64_t> RankWatchdog::MissingRanks(const CollectiveUnderWay& waiting) const {
  std::vector<int64_t> missing;
  for (const int64_t rank : waiting.ranks) {
    if (NumIssued(rank, waiting.group) < waiting.number) missing.push_back(rank);
  }
  return missing;
}

std::string RankWatchdog::Missing(const CollectiveUnderWay& waiting) const {
  std::vector<std::string> missing;
  for (const int64_t rank : MissingRanks(waiting)) {
    missing.push_back(absl::StrCat(rank, " (at ", NumIssued(rank, waiting.group), ")"));
  }
  return absl::StrCat(CollectiveKindName(waiting.kind), " ", waiting.number, " at \"", waiting.site,
                      "\" waits for ",
                      missing.empty() ? "no rank that is known: all have begun it"
                                      : absl::StrCat("rank ", absl::StrJoin(missing, ", ")));
}

std::vector<int64_t> RankWatchdog::ChainOf(int64_t rank) const {
  std::vector<int64_t> chain;
  while (rank >= 0 && std::ranges::find(chain, rank) == chain.end()) {
    chain.push_back(rank);
    const Heard& heard = heard_[static_cast<size_t>(rank)];
    rank = Clock::now() - heard.since > 4 * kBeat ? RankReport::kNone : heard.report.awaited;
  }
  return chain;
}

bool RankWatchdog::GoesOn(const std::vector<int64_t>& chain, Clock::time_point now) const {
  const auto limit = absl::ToChronoNanoseconds(options_.limit);
  return std::ranges::any_of(chain, [&](int64_t rank) {
    return now - heard_[static_cast<size_t>(rank)].went_on <= limit;
  });
}

bool RankWatchdog::IsLate(const CollectiveUnderWay& waiting, Clock::time_point now) const {
  const auto limit = absl::ToChronoNanoseconds(options_.limit);
  return now - std::max(waiting.since, began_) > limit &&
         std::ranges::none_of(MissingRanks(waiting),
                              [&](int64_t rank) { return GoesOn(ChainOf(rank), now); });
}

bool RankWatchdog::IsLate(const AwaitedMessage& message, Clock::time_point now) const {
  const auto limit = absl::ToChronoNanoseconds(options_.limit);
  if (now - std::max(message.since, began_) <= limit) return false;
  const std::vector<int64_t> chain = ChainOf(message.rank);
  // Who waits in a collective finds out by itself who is missing there.
  const Heard& last = heard_[static_cast<size_t>(chain.back())];
  if (last.report.awaited == RankReport::kCollective && now - last.since <= 4 * kBeat) return false;
  return !GoesOn(chain, now);
}

std::string RankWatchdog::Missing(const AwaitedMessage& message) const {
  const std::vector<int64_t> chain = ChainOf(message.rank);
  const Heard& last = heard_[static_cast<size_t>(chain.back())];
  const bool is_circle = last.report.awaited >= 0 && Clock::now() - last.since <= 4 * kBeat;
  return absl::StrCat(
      "a ", CollectiveKindName(message.kind), " of \"", message.site, "\" waits for rank ",
      absl::StrJoin(chain, ", which waits for rank "),
      is_circle ? absl::StrCat(", which waits for rank ", last.report.awaited) : "");
}

}  // namespace gemini::trainer
