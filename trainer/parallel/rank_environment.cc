// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_environment.h"

#include <cstdlib>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostPort = 65'535;
// Of the store that srun's ranks open on their first node: no system gives these out by itself.
constexpr int64_t kFirstPort = 20'000;
constexpr int64_t kNumPorts = 10'000;
constexpr int64_t kMostRestarts = std::numeric_limits<int32_t>::max();

// Returns the variable's number, at least `least` and at most `most`.
absl::StatusOr<int64_t> NumberOf(Variables variables, absl::string_view name, int64_t least,
                                 int64_t most) {
  const std::optional<std::string> text = variables(name);
  if (!text.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not set, though its launcher's other variables are"));
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < least || number > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *text, " is no number from ", least, " to ", most));
  }
  return number;
}

// Reads a rank's number from `rank` and how many there are from `size`, which is at most `most`.
absl::StatusOr<std::pair<int64_t, int64_t>> RankOf(Variables variables, absl::string_view rank,
                                                   absl::string_view size, int64_t most) {
  GEMINI_ASSIGN_OR_RETURN(const int64_t count, NumberOf(variables, size, 1, most));
  GEMINI_ASSIGN_OR_RETURN(const int64_t number, NumberOf(variables, rank, 0, kMostRanks));
  if (number >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat(rank, "=", number, " is not below ", size, "=", count));
  }
  return std::pair(number, count);
}

absl::StatusOr<RankEnvironment> ReadLaunched(Variables variables, Launcher launcher,
                                             absl::string_view rank, absl::string_view size) {
  RankEnvironment found = {.launcher = launcher};
  GEMINI_ASSIGN_OR_RETURN(std::tie(found.rank, found.num_ranks),
                          RankOf(variables, rank, size, kMostRanks));
  return found;
}

absl::StatusOr<RankEnvironment> ReadTorchrun(Variables variables) {
  GEMINI_ASSIGN_OR_RETURN(RankEnvironment found,
                          ReadLaunched(variables, Launcher::kTorchrun, "RANK", "WORLD_SIZE"));
  if (variables("LOCAL_RANK").has_value() || variables("LOCAL_WORLD_SIZE").has_value()) {
    GEMINI_ASSIGN_OR_RETURN(std::tie(found.local_rank, found.num_local_ranks),
                            RankOf(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE", found.num_ranks));
  }
  Rendezvous place;
  place.host = variables("MASTER_ADDR").value_or("");
  if (place.host.empty()) {
    return absl::InvalidArgumentError("MASTER_ADDR is not set, though RANK and WORLD_SIZE are");
  }
  GEMINI_ASSIGN_OR_RETURN(place.port, NumberOf(variables, "MASTER_PORT", 1, kMostPort));
  place.is_served = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  int64_t restarts = 0;
  if (variables("TORCHELASTIC_RESTART_COUNT").has_value()) {
    GEMINI_ASSIGN_OR_RETURN(restarts,
                            NumberOf(variables, "TORCHELASTIC_RESTART_COUNT", 0, kMostRestarts));
  }
  place.key_prefix = absl::StrCat("gemini/", variables("TORCHELASTIC_RUN_ID").value_or("none"), "/",
                                  restarts, "/");
  found.rendezvous = std::move(place);
  return found;
}

// What somebody has set for ranks that torchrun did not start.
std::optional<Rendezvous> RendezvousThatIsSet(Variables variables) {
  Rendezvous place = {.host = variables("MASTER_ADDR").value_or(""), .key_prefix = "gemini/"};
  const bool has_port = absl::SimpleAtoi(variables("MASTER_PORT").value_or(""), &place.port) &&
                        place.port >= 1 && place.port <= kMostPort;
  if (place.host.empty() || !has_port) return std::nullopt;
  return place;
}

absl::StatusOr<RankEnvironment> ReadOpenMpi(Variables variables) {
  GEMINI_ASSIGN_OR_RETURN(
      RankEnvironment found,
      ReadLaunched(variables, Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
  GEMINI_ASSIGN_OR_RETURN(std::tie(found.local_rank, found.num_local_ranks),
                          RankOf(variables, "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE", found.num_ranks));
  found.rendezvous = RendezvousThatIsSet(variables);
  return found;
}

// Returns how many tasks node `node` has, of a list as in "4(x2),3": two nodes of 4 and one of 3.
std::optional<int64_t> TasksOfNode(absl::string_view list, int64_t node) {
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, "(x");
    int64_t tasks = 0;
    int64_t nodes = 1;
    if (words.size() > 2 || !absl::SimpleAtoi(words[0], &tasks) || tasks < 1) return std::nullopt;
    if (words.size() == 2) {
      absl::string_view count = words[1];
      if (!absl::ConsumeSuffix(&count, ")") || !absl::SimpleAtoi(count, &nodes) || nodes < 1) {
        return std::nullopt;
      }
    }
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return std::nullopt;
}

// Returns the first node of a list as in "gpu[007-009,12],head": "gpu007".
std::string FirstNode(absl::string_view list) {
  const size_t open = list.find_first_of("[,");
  const std::string prefix(list.substr(0, open));
  if (open == absl::string_view::npos || list[open] == ',') return prefix;
  const absl::string_view numbers = list.substr(open + 1);
  const size_t close = numbers.find(']');
  if (close == absl::string_view::npos) return "";
  const absl::string_view first = numbers.substr(0, numbers.find_first_of(",-]"));
  absl::string_view suffix = numbers.substr(close + 1);
  suffix = suffix.substr(0, suffix.find(','));
  return absl::StrCat(prefix, first, suffix);
}

// On the step's first node, which has the first task; the port follows from the step.
std::optional<Rendezvous> RendezvousOfStep(Variables variables) {
  if (std::optional<Rendezvous> set = RendezvousThatIsSet(variables)) return set;
  Rendezvous place;
  place.host = FirstNode(variables("SLURM_STEP_NODELIST").value_or(""));
  int64_t job = 0, step = 0;
  if (place.host.empty() || !absl::SimpleAtoi(variables("SLURM_JOB_ID").value_or(""), &job) ||
      !absl::SimpleAtoi(variables("SLURM_STEP_ID").value_or(""), &step) || job < 0 || step < 0) {
    return std::nullopt;
  }
  place.port = kFirstPort + (job % kNumPorts + step % kNumPorts) % kNumPorts;
  place.key_prefix = absl::StrCat("gemini/", job, ".", step, "/");
  return place;
}

absl::StatusOr<RankEnvironment> ReadSrun(Variables variables) {
  GEMINI_ASSIGN_OR_RETURN(
      RankEnvironment found,
      ReadLaunched(variables, Launcher::kSrun, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"));
  GEMINI_ASSIGN_OR_RETURN(const int64_t node, NumberOf(variables, "SLURM_NODEID", 0, kMostRanks));
  const std::string list = variables("SLURM_STEP_TASKS_PER_NODE").value_or("");
  const std::optional<int64_t> tasks = TasksOfNode(list, node);
  if (!tasks.has_value() || *tasks > found.num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("SLURM_STEP_TASKS_PER_NODE=", list,
                                                   " does not say how many of the ",
                                                   found.num_ranks, " tasks node ", node, " has"));
  }
  found.num_local_ranks = *tasks;
  GEMINI_ASSIGN_OR_RETURN(found.local_rank, NumberOf(variables, "SLURM_LOCALID", 0, *tasks - 1));
  found.rendezvous = RendezvousOfStep(variables);
  return found;
}

std::string Shown(const RankEnvironment& found) {
  return absl::StrCat("rank ", found.rank, " of ", found.num_ranks);
}

}  // namespace

absl::string_view LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "mpirun";
    case Launcher::kSrun:
      return "srun";
  }
  return "";
}

absl::StatusOr<RankEnvironment> ReadRankEnvironment(Variables variables) {
  const auto has = [&](absl::string_view name) { return variables(name).has_value(); };
  // torchrun always sets both. One alone is a variable that somebody has for something else.
  const bool has_rank = has("RANK") && has("WORLD_SIZE");
  if (has("TORCHELASTIC_RUN_ID")) return ReadTorchrun(variables);
  RankEnvironment outer;
  if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")) {
    GEMINI_ASSIGN_OR_RETURN(outer, ReadOpenMpi(variables));
  } else if (has("SLURM_STEP_ID")) {
    GEMINI_ASSIGN_OR_RETURN(outer, ReadSrun(variables));
  }
  if (!has_rank || outer.launcher == Launcher::kNone) {
    return has_rank ? ReadTorchrun(variables) : outer;
  }
  // Others set these, too: for all containers of a job, in which mpirun then starts ranks.
  GEMINI_ASSIGN_OR_RETURN(const RankEnvironment set,
                          ReadLaunched(variables, Launcher::kTorchrun, "RANK", "WORLD_SIZE"));
  if (set.rank == outer.rank && set.num_ranks == outer.num_ranks) return outer;
  return absl::InvalidArgumentError(absl::StrCat(
      "RANK and WORLD_SIZE make this ", Shown(set), ", and ", LauncherName(outer.launcher), " ",
      Shown(outer), ": unset RANK and WORLD_SIZE, or start the ranks with torchrun"));
}

absl::StatusOr<RankEnvironment> ReadRankEnvironment() {
  return ReadRankEnvironment([](absl::string_view name) -> std::optional<std::string> {
    const char* const value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

}  // namespace gemini::trainer
