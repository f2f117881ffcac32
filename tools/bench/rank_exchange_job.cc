// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/rank_exchange_job.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"
#include "trainer/run/rank_job.h"

namespace gemini::bench {
namespace {

using trainer::CollectiveKind;
using trainer::Communicator;
using trainer::RankGroup;
using trainer::Work;

constexpr int kRuns = 5;
constexpr absl::string_view kSite = "exchanges that are measured";
// A receive is the other end of a send.
constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
                                     CollectiveKind::kBroadcast, CollectiveKind::kShift,
                                     CollectiveKind::kSend};

std::optional<CollectiveKind> KindNamed(absl::string_view name) {
  for (const CollectiveKind kind : kKinds) {
    if (name == trainer::CollectiveKindName(kind)) return kind;
  }
  return std::nullopt;
}

class Exchanges {
 public:
  Exchanges(Communicator& ranks, absl::Span<const RankExchange> exchanges)
      : ranks_(ranks), agreement_(ranks), exchanges_(exchanges) {
    int64_t most_bytes = 0;
    for (const RankExchange& one : exchanges) most_bytes = std::max(most_bytes, one.bytes);
    memory_ = std::make_shared<Memory>(2 * static_cast<size_t>(most_bytes));
  }

  // Returns the mean seconds of all ranks.
  absl::StatusOr<double> Run() {
    GEMINI_RETURN_IF_ERROR(MeanOfRanks(0).status());  // All begin at about the same time.
    const auto start = std::chrono::steady_clock::now();
    for (const RankExchange& one : exchanges_) {
      for (int64_t i = 0; i < one.times; ++i) {
        // All of them are begun before one is waited for: a rank on each side may wait for this.
        for (const Work& work : Begin(one)) {
          GEMINI_RETURN_IF_ERROR(trainer::Await(work, memory_));
        }
      }
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return MeanOfRanks(taken.count());
  }

 private:
  // Behind a failure other ranks may still read and write it. What a rank sends in an operation is
  // at least half of all that the operation names.
  struct Memory {
    explicit Memory(size_t size_bytes) : from(size_bytes), to(size_bytes) {}
    std::vector<std::byte> from, to;
  };

  absl::StatusOr<double> MeanOfRanks(double own) {
    GEMINI_ASSIGN_OR_RETURN(const std::vector<double> all,
                            agreement_.Gather(own, "times of exchanges"));
    return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  }

  std::vector<Work> Begin(const RankExchange& one) {
    const RankGroup& world = ranks_.world();
    std::byte* const from = memory_->from.data();
    std::byte* const to = memory_->to.data();
    constexpr auto kSum = trainer::SumType::kFp32;
    const int64_t to_each = one.bytes / (world.size() - 1);
    switch (one.kind) {
      case CollectiveKind::kAllGather:
        return {ranks_.AllGather(world, from, to, to_each, kSite)};
      case CollectiveKind::kReduceScatter:
        return {ranks_.ReduceScatter(world, kSum, from, to, to_each / trainer::SumTypeBytes(kSum),
                                     kSite)};
      case CollectiveKind::kAllReduce:
        // Each part is scattered and gathered.
        return {ranks_.AllReduce(
            world, kSum, to, to_each / (2 * trainer::SumTypeBytes(kSum)) * world.size(), kSite)};
      case CollectiveKind::kAllToAll:
        return {ranks_.AllToAll(world, from, to, to_each, kSite)};
      case CollectiveKind::kBroadcast:
        return {ranks_.Broadcast(world, to, one.bytes, /*place=*/0, kSite)};
      case CollectiveKind::kShift:
        return {ranks_.Shift(world, from, to, one.bytes, kSite)};
      case CollectiveKind::kSend:
      case CollectiveKind::kReceive:
        return BeginMessages(one.bytes);
    }
    return {};
  }

  std::vector<Work> BeginMessages(int64_t bytes) {
    const RankGroup& world = ranks_.world();
    constexpr int64_t kForward = 0, kBack = 1;  // Tags.
    const bool has_next = world.place + 1 < world.size();
    const bool has_last = world.place > 0;
    std::byte* const from = memory_->from.data();
    std::byte* const to = memory_->to.data();
    std::vector<Work> works;
    const auto receive = [&](std::byte* at, int64_t place, int64_t tag) {
      works.push_back(ranks_.Receive(world, at, bytes, place, tag, kSite));
    };
    const auto send = [&](int64_t place, int64_t tag) {
      works.push_back(ranks_.Send(world, from, bytes, place, tag, kSite));
    };
    if (has_last) receive(to, world.place - 1, kForward);
    if (has_next) receive(to + bytes, world.place + 1, kBack);
    if (has_next) send(world.place + 1, kForward);
    if (has_last) send(world.place - 1, kBack);
    return works;
  }

  Communicator& ranks_;
  const trainer::RankAgreement agreement_;
  const absl::Span<const RankExchange> exchanges_;
  std::shared_ptr<Memory> memory_;
};

absl::Status JoinAndMeasure(absl::Span<const absl::string_view> words) {
  GEMINI_ASSIGN_OR_RETURN(const std::vector<RankExchange> exchanges, ParseRankExchanges(words));
  GEMINI_ASSIGN_OR_RETURN(const trainer::RankEnvironment where, trainer::ReadRankEnvironment());
  if (where.num_ranks < 2) {
    return absl::InvalidArgumentError("one rank exchanges nothing: start several by mpirun");
  }
  GEMINI_ASSIGN_OR_RETURN(const trainer::RankJob job,
                          trainer::JoinRanks(where, trainer::JoinWish()));
  GEMINI_ASSIGN_OR_RETURN(std::vector<double> seconds,
                          SecondsOfExchanges(*job.communicator, exchanges, kRuns));
  std::ranges::sort(seconds);
  if (where.rank == 0) {
    const nlohmann::ordered_json line = {{"ranks", where.num_ranks},
                                         {"seconds", seconds[seconds.size() / 2]},
                                         {"least_seconds", seconds.front()},
                                         {"most_seconds", seconds.back()}};
    std::printf("%s\n", line.dump().c_str());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RankExchange>> ParseRankExchanges(
    absl::Span<const absl::string_view> words) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(
        why..., ": write a kind, how often, and bytes, as all-reduce:12:786432; ", "kinds are ",
        absl::StrJoin(kKinds, ", ", [](std::string* text, CollectiveKind kind) {
          absl::StrAppend(text, trainer::CollectiveKindName(kind));
        })));
  };
  if (words.empty()) return refuse("there is no exchange");
  std::vector<RankExchange> exchanges;
  for (const absl::string_view word : words) {
    const std::vector<absl::string_view> parts = absl::StrSplit(word, ':');
    RankExchange one;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &one.times) ||
        !absl::SimpleAtoi(parts[2], &one.bytes)) {
      return refuse("'", word, "' is no exchange");
    }
    const std::optional<CollectiveKind> kind = KindNamed(parts[0]);
    if (!kind.has_value()) return refuse("there is no kind '", parts[0], "'");
    one.kind = *kind;
    if (one.times < 1 || one.bytes < 1 || one.bytes > kGiB) {
      return refuse("'", word, "' is ", one.times, " times ", one.bytes,
                    " bytes, and both are at least 1, bytes at most ", kGiB);
    }
    exchanges.push_back(one);
  }
  return exchanges;
}

absl::StatusOr<std::vector<double>> SecondsOfExchanges(Communicator& ranks,
                                                       absl::Span<const RankExchange> exchanges,
                                                       int runs) {
  Exchanges all(ranks, exchanges);
  GEMINI_RETURN_IF_ERROR(all.Run().status());  // Memory is touched for the first time.
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    GEMINI_ASSIGN_OR_RETURN(seconds.emplace_back(), all.Run());
  }
  return seconds;
}

int RunRankExchange(absl::Span<const absl::string_view> words) {
  const absl::Status status = JoinAndMeasure(words);
  if (status.ok()) return 0;
  std::fprintf(stderr, "gemini-bench rank-exchange: %s\n", std::string(status.message()).c_str());
  // Nothing is put in order: other ranks may read and write what this one has.
  std::_Exit(1);
}

}  // namespace gemini::bench
