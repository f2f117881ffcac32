// SPDX-License-Identifier: Apache-2.0
#include "tools/perfetto_trace.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gemini/ids.h"

namespace gemini::tools {
namespace {

double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

std::string NameOf(const TimelineEvent& event) {
  switch (event.lane) {
    case TimelineLane::kOperator:
      return absl::StrCat("operator ", event.subject);
    case TimelineLane::kUpdate:
      return absl::StrCat("bundle ", event.subject);
    default: {
      const ChunkId chunk(event.subject);
      return absl::StrCat(ChunkKindName(KindOf(chunk)), " ", BundleOf(chunk).value());
    }
  }
}

nlohmann::json Metadata(int process, int row, absl::string_view what, absl::string_view name) {
  return {{"ph", "M"},
          {"pid", process},
          {"tid", row},
          {"name", std::string(what)},
          {"args", {{"name", std::string(name)}}}};
}

int64_t StartOf(const TimelineEvent& event) { return event.begin_ns - event.stall_ns; }

}  // namespace

nlohmann::json PerfettoTrace(absl::Span<const TimelineProcess> processes) {
  nlohmann::json events = nlohmann::json::array();
  int process_id = 0;
  for (const TimelineProcess& process : processes) {
    ++process_id;
    events.push_back(Metadata(process_id, 0, "process_name", process.name));
    for (const TimelineLane lane : kAllTimelineLanes) {
      events.push_back(
          Metadata(process_id, static_cast<int>(lane) + 1, "thread_name", TimelineLaneName(lane)));
    }
    int64_t origin_ns = std::numeric_limits<int64_t>::max();
    for (const TimelineEvent& event : process.events) {
      origin_ns = std::min(origin_ns, StartOf(event));
    }
    for (const TimelineEvent& event : process.events) {
      const int row = static_cast<int>(event.lane) + 1;
      const auto add = [&](const std::string& name, int64_t begin_ns, int64_t end_ns) {
        events.push_back({{"ph", "X"},
                          {"pid", process_id},
                          {"tid", row},
                          {"name", name},
                          {"ts", Microseconds(begin_ns - origin_ns)},
                          {"dur", Microseconds(end_ns - begin_ns)}});
      };
      if (event.stall_ns > 0) {
        add(absl::StrCat("wait: ", StallCauseName(event.cause)), StartOf(event), event.begin_ns);
      }
      add(NameOf(event), event.begin_ns, event.end_ns);
      events.back()["args"] = {{"bytes", event.size_bytes}};
      if (event.lane == TimelineLane::kOperator) {
        events.push_back({{"ph", "C"},
                          {"pid", process_id},
                          {"name", "DEVICE bytes"},
                          {"ts", Microseconds(event.begin_ns - origin_ns)},
                          {"args", {{"bytes", event.size_bytes}}}});
      }
    }
  }
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace gemini::tools
