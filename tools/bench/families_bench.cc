// SPDX-License-Identifier: Apache-2.0
// gemini-train beside transformers, one benchmark a model family and question. A family's first one
// runs tools/bench/families.py, which says what is compared, for all of its questions that the
// filter of this process names; each reports the figures that were printed for it.
#include <benchmark/benchmark.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <map>
#include <regex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/errno_status.h"
#include "nlohmann/json.hpp"

namespace gemini::bench {
namespace {

constexpr absl::string_view kFamilies[] = {"llama", "qwen3", "mixtral", "gpt2", "bert", "vit"};
constexpr absl::string_view kQuestions[] = {"all", "quarter", "link"};

// From CMake: the Python of .venv, this clone, and the program that is measured.
constexpr char kCommand[] = "exec '" GEMINI_PYTHON "' '" GEMINI_SOURCE_DIR
                            "/tools/bench/families.py' --train '" GEMINI_TRAIN "' ";

std::string NameOf(absl::string_view family, absl::string_view question) {
  return absl::StrCat("families_", family, "_", question);
}

// Runs the script. Returns the figures by question. UNAVAILABLE: it failed, and says why.
absl::StatusOr<nlohmann::json> Measure(absl::string_view family, absl::string_view questions) {
  const std::string command = absl::StrCat(kCommand, family, questions);
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ErrnoStatus(errno, absl::StrCat("starting ", command));
  std::string output;
  std::array<char, 4096> part;
  for (size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    output.append(part.data(), got);
  }
  ::pclose(pipe);
  nlohmann::json figures = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (!figures.is_object()) {
    return absl::UnavailableError(
        absl::StrCat(command, " printed '", output, "': see what it wrote to stderr"));
  }
  if (figures.contains("error")) {
    return absl::UnavailableError(figures.value("error", "an error without a message"));
  }
  return figures;
}

// Returns the figures of a question. Those of the family's other questions wait for their turn.
absl::StatusOr<nlohmann::json> FiguresOf(absl::string_view family, absl::string_view question) {
  static std::map<std::string, std::deque<nlohmann::json>> measured;  // By name.
  std::deque<nlohmann::json>& own = measured[NameOf(family, question)];
  if (own.empty()) {
    const std::regex filter(benchmark::GetBenchmarkFilter(), std::regex::extended);
    std::string questions;
    for (const absl::string_view other : kQuestions) {
      if (other == question || std::regex_search(NameOf(family, other), filter)) {
        absl::StrAppend(&questions, " ", other);
      }
    }
    absl::StatusOr<nlohmann::json> figures = Measure(family, questions);
    if (!figures.ok()) return figures.status();
    for (auto& [other, values] : figures->items()) {
      measured[NameOf(family, other)].push_back(std::move(values));
    }
  }
  if (own.empty()) return absl::UnavailableError("families.py left the question out");
  nlohmann::json figures = std::move(own.front());
  own.pop_front();
  if (figures.contains("error")) {
    return absl::UnavailableError(figures.value("error", "an error without a message"));
  }
  return figures;
}

void Run(benchmark::State& state, absl::string_view family, absl::string_view question) {
  for (auto _ : state) {
    const absl::StatusOr<nlohmann::json> figures = FiguresOf(family, question);
    if (!figures.ok()) return state.SkipWithError(figures.status().ToString().c_str());
    state.SetIterationTime(figures->value("ours_s", 0.0));
    for (const auto& [name, value] : figures->items()) {
      if (value.is_number()) state.counters[name] = value.get<double>();
    }
  }
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const absl::string_view family : kFamilies) {
    for (const absl::string_view question : kQuestions) {
      benchmark::RegisterBenchmark(NameOf(family, question).c_str(), Run, family, question)
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kSecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace gemini::bench
