// SPDX-License-Identifier: Apache-2.0
#include "policies/pipeline/stage_split.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gemini::policies {
namespace {

constexpr int64_t kMostNs = int64_t{24} * 3600 * 1'000'000'000;

absl::Status CheckStages(int64_t num_stages, int64_t num_blocks) {
  if (num_stages >= 1 && num_stages <= num_blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(num_stages, " stages of a pipeline need as many blocks, the model has ",
                   num_blocks, ": use fewer ranks or chunks"));
}

absl::Status CheckTimes(const StageTimes& times) {
  std::vector<int64_t> all = times.block_ns;
  all.insert(all.end(), {times.first_ns, times.last_ns});
  int64_t left_ns = kMostNs;
  for (const int64_t ns : all) {
    if (ns < 0 || ns > left_ns) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of a model takes ", ns,
                       " ns: it is 0 or more, and all together are at most a day"));
    }
    left_ns -= ns;
  }
  return absl::OkStatus();
}

// A day's square has room, and all ranks add up the same, which doubles do not promise.
using Cost = absl::uint128;
constexpr Cost kNever = absl::Uint128Max();

// Deals blocks so that the cost is least: that of a stage and of those behind it is `cost` of its
// time and of theirs (0 for none). Goes by the best ways to deal the last blocks to the last
// stages.
std::vector<int64_t> DealByCost(const StageTimes& times, int64_t num_stages,
                                absl::FunctionRef<Cost(Cost ns, Cost later_cost)> cost) {
  const int64_t num_blocks = static_cast<int64_t>(times.block_ns.size());
  std::vector<int64_t> before_ns = {0};  // Of the blocks before each one.
  for (const int64_t ns : times.block_ns) before_ns.push_back(before_ns.back() + ns);
  struct Way {
    Cost cost = kNever;
    int64_t count = 0;  // Of the first of these stages.
  };
  std::vector<Way> later(num_blocks + 1);  // For the stages behind: by their first block.
  later[num_blocks] = {.cost = 0};
  std::vector<std::vector<Way>> ways;
  for (int64_t stage = num_stages - 1; stage >= 0; --stage) {
    std::vector<Way> here(num_blocks + 1);
    for (int64_t block = stage; block < num_blocks; ++block) {
      for (int64_t count = 1; count <= num_blocks - block; ++count) {
        int64_t ns = before_ns[block + count] - before_ns[block];
        if (stage == 0) ns += times.first_ns;
        if (stage == num_stages - 1) ns += times.last_ns;
        const Cost later_cost = later[block + count].cost;
        const Cost total = later_cost == kNever ? kNever : cost(static_cast<Cost>(ns), later_cost);
        if (total <= here[block].cost) here[block] = {.cost = total, .count = count};
      }
    }
    later = here;
    ways.push_back(std::move(here));
  }
  std::vector<int64_t> split;
  for (int64_t block = 0; !ways.empty(); ways.pop_back()) {
    split.push_back(ways.back()[block].count);
    block += split.back();
  }
  return split;
}

// Deals equal blocks, where the last stage alone does more than blocks: whatever that one has, the
// others are dealt evenly, the first ones with one more. So few splits are compared, where models
// of a hundred blocks have millions.
std::vector<int64_t> DealEqualBlocks(int64_t num_blocks, int64_t block_ns, int64_t last_ns,
                                     int64_t num_stages) {
  const int64_t others = num_stages - 1;
  if (others == 0) return {num_blocks};
  const auto in_ns = [&](int64_t blocks) { return static_cast<Cost>(blocks * block_ns); };
  std::pair<Cost, Cost> least = {kNever, kNever};  // The slowest stage's time, and the squares.
  int64_t count_of_last = 1;
  for (int64_t count = 1; count <= num_blocks - others; ++count) {
    const int64_t left = num_blocks - count;
    const int64_t fewer = left / others, with_more = left % others;
    const Cost less_ns = in_ns(fewer), more_ns = in_ns(fewer + 1);
    const Cost end_ns = in_ns(count) + static_cast<Cost>(last_ns);
    const std::pair<Cost, Cost> cost = {
        std::max(end_ns, with_more > 0 ? more_ns : less_ns),
        end_ns * end_ns + static_cast<Cost>(others - with_more) * less_ns * less_ns +
            static_cast<Cost>(with_more) * more_ns * more_ns};
    // Of equal ones the first: there the last stage has the fewest.
    if (cost >= least) continue;
    least = cost;
    count_of_last = count;
  }
  const int64_t left = num_blocks - count_of_last;
  std::vector<int64_t> split;
  for (int64_t stage = 0; stage < others; ++stage) {
    split.push_back(left / others + (stage < left % others ? 1 : 0));
  }
  split.push_back(count_of_last);
  return split;
}

int64_t SlowestNs(const StageTimes& times, const std::vector<int64_t>& split) {
  int64_t slowest_ns = 0;
  size_t block = 0;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    int64_t ns = stage == 0 ? times.first_ns : 0;
    for (int64_t i = 0; i < split[stage]; ++i) ns += times.block_ns[block++];
    if (stage + 1 == split.size()) ns += times.last_ns;
    slowest_ns = std::max(slowest_ns, ns);
  }
  return slowest_ns;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> DealBlocks(const StageTimes& times, int64_t num_stages) {
  const int64_t num_blocks = static_cast<int64_t>(times.block_ns.size());
  if (absl::Status status = CheckStages(num_stages, num_blocks); !status.ok()) return status;
  if (absl::Status status = CheckTimes(times); !status.ok()) return status;
  const int64_t block_ns = times.block_ns.front();
  const bool are_equal =
      std::ranges::all_of(times.block_ns, [&](int64_t ns) { return ns == block_ns; });
  if (are_equal && block_ns > 0 && times.first_ns == 0) {
    return DealEqualBlocks(num_blocks, block_ns, times.last_ns, num_stages);
  }
  const int64_t slowest_ns = SlowestNs(
      times, DealByCost(times, num_stages,
                        [](Cost ns, Cost later_cost) { return std::max(ns, later_cost); }));
  return DealByCost(times, num_stages, [&](Cost ns, Cost later_cost) {
    return ns > static_cast<Cost>(slowest_ns) ? kNever : ns * ns + later_cost;
  });
}

absl::StatusOr<std::vector<int64_t>> ParseStageSplit(absl::string_view text, int64_t num_blocks,
                                                     int64_t num_stages) {
  if (absl::Status status = CheckStages(num_stages, num_blocks); !status.ok()) return status;
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text.substr(0, 100), "' ", why, "; wanted: ", num_stages,
                     " numbers of blocks, each 1 or more, ", num_blocks, " in all"));
  };
  std::vector<int64_t> split;
  int64_t left = num_blocks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1) {
      return refuse(absl::StrCat("has '", part.substr(0, 20), "'"));
    }
    if (count > left) return refuse("has more blocks than the model");
    left -= count;
    split.push_back(count);
  }
  if (left > 0) return refuse(absl::StrCat("has ", num_blocks - left, " blocks"));
  if (static_cast<int64_t>(split.size()) != num_stages) {
    return refuse(absl::StrCat("is for ", split.size(), " stages"));
  }
  return split;
}

}  // namespace gemini::policies
