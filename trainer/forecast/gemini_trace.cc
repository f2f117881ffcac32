// SPDX-License-Identifier: Apache-2.0
// gemini-trace: foretells the traces of a model's training steps, for memstat plan and for files.
// Reads requests from standard input to its end, and writes a reply for each
// (trainer/forecast/trace_exchange.h, ranks_exchange.h). It is a program of its own because it
// needs Torch, which takes a fifth of a second and 120 MB to load. Exit status: 0 done; 1 an error;
// 2 a wrong flag.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "ATen/Parallel.h"
#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "gemini/system/end_process.h"
#include "trainer/families/hf_config.h"
#include "trainer/forecast/rank_step.h"
#include "trainer/forecast/ranks_exchange.h"
#include "trainer/forecast/trace_exchange.h"
#include "trainer/forecast/traced_step.h"

namespace gemini::trainer {
namespace {

// Returns the reply to a request for the steps of several ranks. `json` is the text of the
// directory's config.json.
std::string ReplyToRanks(const std::string& line, const std::string& directory,
                         const std::string& json) {
  absl::StatusOr<RanksRequest> request = ParseRanksRequest(line);
  if (!request.ok()) return EncodeReply(request.status());
  const absl::StatusOr<HfConfig> config =
      ParseHfConfig(json, absl::StrCat(directory, "/config.json"), request->task);
  if (!config.ok()) return EncodeReply(config.status());
  request->run.has_documents |= config->spec.task.asks_where_texts_end();
  // Attention takes memory for each.
  at::set_num_threads(static_cast<int>(std::max<int64_t>(request->run.threads, 1)));
  const absl::StatusOr<RanksForecast> forecast =
      ForetellStepOfRanks(config->spec, request->run, request->num_ranks, request->rates);
  return forecast.ok() ? EncodeRanksReply(*forecast) : EncodeReply(forecast.status());
}

// The same of a request for a trace. `task` is that of requests that name none.
std::string ReplyTo(const std::string& line, const std::string& directory, const std::string& json,
                    const std::string& task) {
  absl::StatusOr<TraceRequest> request = ParseRequest(line);
  if (!request.ok()) return EncodeReply(request.status());
  if (request->task.name == "auto") request->task.name = task;
  const absl::StatusOr<HfConfig> config =
      ParseHfConfig(json, absl::StrCat(directory, "/config.json"), request->task);
  if (!config.ok()) return EncodeReply(config.status());
  RoundShape& round = request->round;
  if (round.sequence == 0) round.sequence = config->spec.default_sequence();
  round.has_documents |= config->spec.task.asks_where_texts_end();
  absl::StatusOr<NamedTrace> made = TraceStep(config->spec, round, request->rate);
  if (!made.ok()) return EncodeReply(made.status());
  return EncodeReply({TitleOf(directory, *config), *request, *std::move(made)});
}

int Run(const std::string& directory, const std::string& task) {
  const absl::StatusOr<HfConfig> config = ReadHfConfig(directory, {.name = task});
  if (!config.ok()) {
    std::fprintf(stderr, "gemini-trace: %s\n", std::string(config.status().message()).c_str());
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) continue;
    const std::string reply = IsRanksRequest(line) ? ReplyToRanks(line, directory, config->json)
                                                   : ReplyTo(line, directory, config->json, task);
    const bool written = std::fwrite(reply.data(), 1, reply.size(), stdout) == reply.size();
    if (!written || std::fflush(stdout) != 0) {
      std::perror("gemini-trace: standard output");
      return 1;
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  std::string model, task = "auto";
  CLI::App app(
      "Foretells what a training step of a model touches, from its config.json. Reads a request a "
      "line, such as {\"batch\": 4, \"sequence\": 1024, \"recompute\": true}, and writes its "
      "trace: gemini-trace --model DIR < request > FILE; memstat plan --trace FILE");
  app.add_option("--model", model, "Directory with a config.json")->required();
  app.add_option("--task", task,
                 "What the model learns, as gemini-train has it, where a request does not say it. "
                 "auto: what config.json says")
      ->capture_default_str();
  app.set_version_flag("--version", GEMINI_VERSION);
  try {
    app.parse(argc, argv);
    return Run(model, task);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gemini-trace: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace gemini::trainer

int main(int argc, char** argv) { gemini::EndProcess(gemini::trainer::Main(argc, argv)); }
