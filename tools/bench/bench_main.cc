// SPDX-License-Identifier: Apache-2.0
// The main of gemini-bench. What is no benchmark of Google's library, but a search with a table as
// its result, is a script of this folder, which the first argument names.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

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

}  // namespace

int main(int argc, char** argv) {
#ifdef GEMINI_PYTHON
  if (argc > 1 && absl::string_view(argv[1]) == "longest-sequence") {
    return RunLongestSequence(argc, argv);
  }
#endif
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
