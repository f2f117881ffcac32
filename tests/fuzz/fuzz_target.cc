// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"

#include <filesystem>
#include <fstream>

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path corpus = (*argv)[i];
    if (corpus.string().starts_with("-")) continue;
    if (std::filesystem::is_regular_file(corpus)) break;  // An input to be run again.
    std::filesystem::create_directories(corpus);
    int number = 0;
    for (const std::string& seed : gemini::fuzz::Seeds()) {
      std::ofstream(corpus / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
    }
    break;
  }
  return 0;
}
