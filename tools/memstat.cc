// SPDX-License-Identifier: Apache-2.0
// memstat: what a running geminid holds, and where each chunk of a space is. Read-only: it says
// hello as an observer, which gets no lease. `memstat trace` writes what a job did lately to a
// file. `memstat plan` foretells a job, and contacts nobody unless that runs already. Exit status:
// 0 shown, 1 no daemon, no such space or a refusal (told on stderr), 2 usage. Of plan: as RunPlan.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/wire/connection.h"
#include "gemini/json_text.h"
#include "gemini/protocol.h"
#include "gemini/system/runtime_directory.h"
#include "gemini/system/status_macros.h"
#include "tools/gpu_view.h"
#include "tools/memstat_plan.h"
#include "tools/memstat_trace.h"
#include "tools/status_view.h"

namespace gemini::tools {
namespace {

// Asked for a page; the server sends what fits into a message.
constexpr int64_t kChunksPerPage = 1024;

struct Options {
  std::string socket_path = DefaultSocketPath();
  std::string space;  // Empty: the screen of all.
  bool json = false;
  bool writes_trace = false;
  TraceFlags trace;
};

absl::Status SayHello(client::Connection& server) {
  return server
      .Call(
          wire::Body::Hello,
          [](flatbuffers::FlatBufferBuilder& builder) {
            return wire::CreateHelloDirect(builder, kProtocolVersion, "memstat",
                                           wire::Role::kObserver, "memstat")
                .Union();
          },
          wire::Body::HelloReply)
      .status();
}

absl::Status ShowStatus(client::Connection& server, bool as_json) {
  GEMINI_ASSIGN_OR_RETURN(const client::Reply reply,
                          server.Call(
                              wire::Body::GetStatus,
                              [](flatbuffers::FlatBufferBuilder& builder) {
                                return wire::CreateGetStatus(builder).Union();
                              },
                              wire::Body::StatusReply));
  const auto& status = *reply.As<wire::StatusReply>();
  const std::string gpu = flatbuffers::GetString(status.device_gpu_uuid());
  if (as_json) {
    nlohmann::json shown = StatusJson(status);
    if (!gpu.empty()) shown["gpu"] = GpuJson(gpu, status.device_is_counted(), ReadGpuUse(gpu));
    std::puts(JsonText(shown).c_str());
  } else {
    std::fputs(StatusText(status).c_str(), stdout);
    if (!gpu.empty()) {
      std::fputs(GpuText(gpu, status.device_is_counted(), ReadGpuUse(gpu)).c_str(), stdout);
    }
  }
  return absl::OkStatus();
}

absl::Status ShowChunks(client::Connection& server, const std::string& space, bool as_json) {
  nlohmann::json rows = nlohmann::json::array();
  int64_t first = 0;
  while (true) {
    GEMINI_ASSIGN_OR_RETURN(const client::Reply reply,
                            server.Call(
                                wire::Body::ListChunks,
                                [&](flatbuffers::FlatBufferBuilder& builder) {
                                  return wire::CreateListChunksDirect(builder, space.c_str(), first,
                                                                      kChunksPerPage)
                                      .Union();
                                },
                                wire::Body::ChunksReply));
    const auto& page = *reply.As<wire::ChunksReply>();
    if (as_json) {
      for (nlohmann::json& row : ChunksJson(page)) rows.push_back(std::move(row));
    } else {
      if (first == 0) std::fputs(ChunksHeader(space, page).c_str(), stdout);
      std::fputs(ChunksText(page).c_str(), stdout);
    }
    const int64_t shown = page.chunks() == nullptr ? 0 : page.chunks()->size();
    first += shown;
    if (shown == 0 || first >= page.num_chunks()) break;
  }
  if (as_json) std::puts(JsonText(rows).c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<client::Connection>> Connect(const Options& options) {
  GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, client::Connection::Connect(options.socket_path));
  auto server = std::make_unique<client::Connection>(std::move(socket));
  GEMINI_RETURN_IF_ERROR(SayHello(*server));
  return server;
}

absl::Status Show(const Options& options) {
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<client::Connection> connected, Connect(options));
  client::Connection& server = *connected;
  if (options.writes_trace) return WriteTrace(server, options.trace);
  if (options.space.empty()) return ShowStatus(server, options.json);
  return ShowChunks(server, options.space, options.json);
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("Shows what a running geminid holds: tiers, tenants, budgets, chunks by state.");
  app.add_option("--socket", options.socket_path, "The daemon's socket")->capture_default_str();
  app.add_flag("--json", options.json, "JSON, in bytes and nanoseconds");
  CLI::App* chunks = app.add_subcommand("chunks", "Where each chunk of a space is");
  chunks->add_option("SPACE", options.space, "The space's name, as memstat shows it")->required();
  chunks->add_flag("--json", options.json, "JSON, one object a chunk, FREE ones too");
  PlanFlags plan_flags;
  const CLI::App* const plan = AddPlanCommand(app, plan_flags);
  const CLI::App* const trace = AddTraceCommand(app, options.trace);
  app.set_version_flag("--version", GEMINI_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (plan->parsed()) return RunPlan(plan_flags, [&options] { return Connect(options); });
  options.writes_trace = trace->parsed();
  if (const absl::Status status = Show(options); !status.ok()) {
    std::fprintf(stderr, "memstat: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  const int status = Run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fputs("memstat: what it shows could not be written: the disk is full, or nobody reads it\n",
             stderr);
  return status == 0 ? 1 : status;
}

}  // namespace
}  // namespace gemini::tools

int main(int argc, char** argv) { return gemini::tools::Main(argc, argv); }
