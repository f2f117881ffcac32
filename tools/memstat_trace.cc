// SPDX-License-Identifier: Apache-2.0
#include "tools/memstat_trace.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/json_text.h"
#include "gemini/plan/plan.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"
#include "tools/perfetto_trace.h"
#include "tools/planned_timeline.h"
#include "tools/recorded_round.h"
#include "tools/timeline_rounds.h"
#include "trainer/checkpoint/replace_file.h"

namespace gemini::tools {
namespace {

using flatbuffers::FlatBufferBuilder;

struct Recorded {
  std::vector<TimelineEvent> events;
  std::map<uint16_t, std::string> spaces;
  uint64_t written = 0;
};

absl::StatusOr<Recorded> ReadRecorded(client::Connection& server, const std::string& space) {
  Recorded recorded;
  uint64_t next = 0;
  do {
    GEMINI_ASSIGN_OR_RETURN(
        const client::Reply reply,
        server.Call(
            wire::Body::ReadTimeline,
            [&](FlatBufferBuilder& builder) {
              return wire::CreateReadTimelineDirect(builder, space.c_str(), next).Union();
            },
            wire::Body::TimelineReply));
    const auto& page = *reply.As<wire::TimelineReply>();
    // What is written while we read is left out, or there would be no end.
    if (next == 0) recorded.written = page.written();
    if (page.next() <= next) break;
    next = page.next();
    if (page.spaces() != nullptr) {
      for (const wire::TimelineSpace* entry : *page.spaces()) {
        recorded.spaces[entry->index()] = entry->name() == nullptr ? "" : entry->name()->str();
      }
    }
    if (page.events() == nullptr) continue;
    for (const wire::TimelineEvent* event : *page.events()) {
      if (event->lane() >= kNumTimelineLanes || event->cause() >= kNumStallCauses) continue;
      recorded.events.push_back({.lane = static_cast<TimelineLane>(event->lane()),
                                 .cause = static_cast<StallCause>(event->cause()),
                                 .space = event->space(),
                                 .subject = event->subject(),
                                 .begin_ns = event->begin_ns(),
                                 .end_ns = event->end_ns(),
                                 .stall_ns = event->stall_ns(),
                                 .size_bytes = event->size_bytes()});
    }
  } while (next <= recorded.written);
  return recorded;
}

// A space lasts as long as its job: which ones there are instead.
absl::Status WithOpenSpaces(const absl::Status& not_found, client::Connection& server) {
  GEMINI_ASSIGN_OR_RETURN(
      const client::Reply reply,
      server.Call(
          wire::Body::GetStatus,
          [](FlatBufferBuilder& builder) { return wire::CreateGetStatus(builder).Union(); },
          wire::Body::StatusReply));
  std::vector<std::string> names;
  if (const auto* spaces = reply.As<wire::StatusReply>()->spaces(); spaces != nullptr) {
    for (const wire::SpaceStatus* space : *spaces) {
      if (space->name() != nullptr) names.push_back(space->name()->str());
    }
  }
  return absl::NotFoundError(absl::StrCat(
      not_found.message(), ", ",
      names.empty() ? "and no job has one open: start one over this daemon, with --daemon"
                    : absl::StrCat("open are: ", absl::StrJoin(names, ", "))));
}

struct Planned {
  std::vector<TimelineEvent> events = {};
  int64_t num_positions = 0;
  std::string made_by;
};

// The plan that the phase's next round follows, made again. Nothing: there is none yet, or the
// policy has none.
absl::StatusOr<std::optional<Planned>> MakePlanned(client::Connection& server,
                                                   const TraceFlags& flags,
                                                   const std::string& first_space) {
  GEMINI_ASSIGN_OR_RETURN(const std::optional<RecordedRound> round,
                          FindRecordedRound(server, flags.space, first_space, flags.phase));
  if (!round) return std::nullopt;
  GEMINI_ASSIGN_OR_RETURN(const policies::RangeTrace packed,
                          policies::PackTrace(round->trace, round->chunk_bytes));
  GEMINI_ASSIGN_OR_RETURN(const Plan plan, policies::MakePlan({packed, round->budget_bytes,
                                                               round->costs, round->policy}));
  Planned planned = {.num_positions = packed.num_positions(), .made_by = plan.made_by};
  GEMINI_ASSIGN_OR_RETURN(planned.events, PlannedTimeline(packed, plan, round->costs,
                                                          round->budget_bytes[Tier::kHost]));
  return planned;
}

std::string Summary(const TimelineProcess& process) {
  int64_t begin_ns = 0, end_ns = 0, stall_ns = 0, fetched = 0, evicted = 0;
  bool any = false;
  for (const TimelineEvent& event : process.events) {
    if (event.lane == TimelineLane::kFetch) fetched += event.size_bytes;
    if (event.lane == TimelineLane::kEvict) evicted += event.size_bytes;
    if (event.lane != TimelineLane::kOperator) continue;
    const int64_t start_ns = event.begin_ns - event.stall_ns;
    begin_ns = std::exchange(any, true) ? std::min(begin_ns, start_ns) : start_ns;
    end_ns = std::max(end_ns, event.end_ns);
    stall_ns += event.stall_ns;
  }
  return absl::StrCat(process.name, ": ", (end_ns - begin_ns) / 1'000'000, " ms, ",
                      stall_ns / 1'000'000, " of them waits; ", FormatByteSize(fetched),
                      " fetched, ", FormatByteSize(evicted), " evicted");
}

}  // namespace

CLI::App* AddTraceCommand(CLI::App& app, TraceFlags& flags) {
  CLI::App* trace = app.add_subcommand(
      "trace", "A job's last round, planned and actual, as a file for ui.perfetto.dev");
  trace->add_option("SPACE", flags.space, "The space's name, as memstat shows it")->required();
  trace->add_option("-o,--output", flags.output, "The file, written anew")->required();
  trace->add_option("--phase", flags.phase, "Of the plan: train, eval, or the job's own")
      ->capture_default_str();
  trace->add_option("--rounds", flags.rounds, "How many of the last rounds")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  return trace;
}

absl::Status WriteTrace(client::Connection& server, const TraceFlags& flags) {
  const absl::StatusOr<Recorded> read = ReadRecorded(server, flags.space);
  if (absl::IsNotFound(read.status())) return WithOpenSpaces(read.status(), server);
  if (!read.ok()) return read.status();
  const Recorded& recorded = *read;
  const std::string first_space =
      recorded.spaces.empty() ? flags.space : recorded.spaces.begin()->second;
  GEMINI_ASSIGN_OR_RETURN(std::optional<Planned> planned, MakePlanned(server, flags, first_space));
  if (!planned && flags.phase != TraceFlags().phase) {
    return absl::NotFoundError(absl::StrCat("no plan was made for phase '", flags.phase,
                                            "' of space ", flags.space,
                                            ", so its rounds are not known: leave --phase out"));
  }
  absl::StatusOr<RoundsOfTimeline> rounds =
      LastRounds(recorded.events, planned ? planned->num_positions : 0, flags.rounds);
  if (!rounds.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "space ", flags.space, ": ", rounds.status().message(), "; ",
        recorded.written > kTimelineEntries
            ? absl::StrCat("it keeps the last ", kTimelineEntries, " of ", recorded.written,
                           " events: a round with more cannot be shown, try again in case it ended")
            : "try again when the job has ended its next step"));
  }
  const int64_t num_rounds = rounds->num_rounds, num_positions = rounds->num_positions;
  std::vector<TimelineProcess> processes = {
      {.name = "actual", .events = std::move(rounds->events), .spaces = recorded.spaces}};
  if (planned) {
    processes.push_back(
        {.name = "planned", .events = std::move(planned->events), .spaces = recorded.spaces});
  }
  const absl::Status written =
      trainer::ReplaceFile(flags.output, JsonText(PerfettoTrace(processes), /*indent=*/-1) + "\n");
  if (!written.ok()) return written;
  std::printf("%s: %s of %s, %s operators; open it at https://ui.perfetto.dev\n",
              flags.output.c_str(),
              absl::StrCat(num_rounds, num_rounds == 1 ? " round" : " rounds").c_str(),
              flags.space.c_str(), absl::StrCat(num_positions).c_str());
  for (const TimelineProcess& process : processes) {
    std::printf("  %s\n", Summary(process).c_str());
  }
  std::puts(planned ? absl::StrCat("  the plan is made by ", planned->made_by).c_str()
                    : "  no plan was made: policy online, or before the second round");
  return absl::OkStatus();
}

}  // namespace gemini::tools
