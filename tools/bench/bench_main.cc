// SPDX-License-Identifier: Apache-2.0
// The main of gemini-bench. The first argument may name what is no benchmark of Google's library
// and has a result of its own: what scripts of this folder find out by runs of gemini-train, what
// one of several ranks measures for them, or what others claim.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/published_claims.h"
#ifdef GEMINI_PYTHON
#include "tools/bench/rank_exchange_job.h"
#include "tools/bench/rank_rates_job.h"
#endif

namespace {

#ifdef GEMINI_PYTHON
// Returns if the script cannot be started.
int RunScript(const char* script, int argc, char** argv) {
  std::vector<std::string> words = {GEMINI_PYTHON,
                                    std::string(GEMINI_SOURCE_DIR "/tools/bench/") + script,
                                    "--train", GEMINI_TRAIN};
  // Without MPI there is none, and modes of one rank remain.
  const std::string mpirun = GEMINI_MPIRUN;
  if (!mpirun.empty()) words.insert(words.end(), {"--mpirun", mpirun});
  words.insert(words.end(), argv + 2, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  std::perror(pointers[0]);
  return 1;
}
#endif

// Returns whether one of them does not hold.
int PrintClaims() {
  const std::vector<gemini::tools::PublishedClaim> claims = gemini::tools::CheckPublishedClaims();
  std::fputs(gemini::tools::ClaimsTable(claims).c_str(), stdout);
  return std::ranges::all_of(claims, &gemini::tools::PublishedClaim::holds) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::string_view first = argc > 1 ? argv[1] : "";
#ifdef GEMINI_PYTHON
  if (first == "longest-sequence") return RunScript("longest_sequence.py", argc, argv);
  if (first == "ranks") return RunScript("ranks.py", argc, argv);
  if (first == "weak-scaling") return RunScript("weak_scaling.py", argc, argv);
  if (first == "rank-rates") return gemini::bench::RunRankRates();
  if (first == "rank-exchange") {
    return gemini::bench::RunRankExchange(std::vector<absl::string_view>(argv + 2, argv + argc));
  }
#endif
  if (first == "claims") return PrintClaims();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
