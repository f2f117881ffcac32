// SPDX-License-Identifier: Apache-2.0
// The main of gemini-bench. The first argument may name what is no benchmark of Google's library
// and has a table as its result: a search, which is a script of this folder, or what others claim.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/published_claims.h"

namespace {

#ifdef GEMINI_PYTHON
// Returns if the script cannot be started.
int RunLongestSequence(int argc, char** argv) {
  std::vector<std::string> words = {
      GEMINI_PYTHON, GEMINI_SOURCE_DIR "/tools/bench/longest_sequence.py", "--train", GEMINI_TRAIN};
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
#ifdef GEMINI_PYTHON
  if (argc > 1 && absl::string_view(argv[1]) == "longest-sequence") {
    return RunLongestSequence(argc, argv);
  }
#endif
  if (argc > 1 && absl::string_view(argv[1]) == "claims") return PrintClaims();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
