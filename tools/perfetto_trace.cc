// SPDX-License-Identifier: Apache-2.0
#include "tools/perfetto_trace.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "gemini/ids.h"

namespace gemini::tools {
namespace {

double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

std::string NameOf(const TimelineEvent& event, const TimelineProcess& process) {
  if (event.lane == TimelineLane::kOperator) return absl::StrCat("operator ", event.subject);
  const auto space = process.spaces.find(event.space);
  const bool is_first = space == process.spaces.begin();
  const std::string of = is_first                        ? ""
                         : space == process.spaces.end() ? absl::StrCat(" of space ", event.space)
                                                         : absl::StrCat(" of ", space->second);
  if (event.lane == TimelineLane::kUpdate) return absl::StrCat("bundle ", event.subject, of);
  const ChunkId chunk(event.subject);
  return absl::StrCat(ChunkKindName(KindOf(chunk)), " ", BundleOf(chunk).value(), of);
}

nlohmann::json Metadata(int process, int row, absl::string_view what, absl::string_view name) {
  return {{"ph", "M"},
          {"pid", process},
          {"tid", row},
          {"name", std::string(what)},
          {"args", {{"name", std::string(name)}}}};
}

int64_t StartOf(const TimelineEvent& event) { return event.begin_ns - event.stall_ns; }

// Gives each event of a lane, by beginning, a row in which nothing else is at that time.
class Rows {
 public:
  int Take(const TimelineEvent& event) {
    std::vector<int64_t>& ends = ends_[static_cast<int>(event.lane)];
    size_t row = 0;
    while (row < ends.size() && ends[row] > StartOf(event)) ++row;
    if (row == ends.size()) ends.push_back(0);
    ends[row] = event.end_ns;
    return Id(event.lane, row);
  }
  static int Id(TimelineLane lane, size_t row) {
    return static_cast<int>(row) * kNumTimelineLanes + static_cast<int>(lane) + 1;
  }
  size_t Count(TimelineLane lane) const { return ends_[static_cast<int>(lane)].size(); }

 private:
  std::array<std::vector<int64_t>, kNumTimelineLanes> ends_;
};

}  // namespace

nlohmann::json PerfettoTrace(absl::Span<const TimelineProcess> processes) {
  nlohmann::json events = nlohmann::json::array();
  int process_id = 0;
  for (const TimelineProcess& process : processes) {
    ++process_id;
    events.push_back(Metadata(process_id, 0, "process_name", process.name));
    std::vector<TimelineEvent> sorted = process.events;
    std::stable_sort(
        sorted.begin(), sorted.end(),
        [](const TimelineEvent& a, const TimelineEvent& b) { return StartOf(a) < StartOf(b); });
    const int64_t origin_ns = sorted.empty() ? 0 : StartOf(sorted.front());
    Rows rows;
    for (const TimelineEvent& event : sorted) {
      const int row = rows.Take(event);
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
      add(NameOf(event, process), event.begin_ns, event.end_ns);
      events.back()["args"] = {{"bytes", event.size_bytes}};
      if (event.lane == TimelineLane::kOperator) {
        events.push_back({{"ph", "C"},
                          {"pid", process_id},
                          {"name", "DEVICE bytes"},
                          {"ts", Microseconds(event.begin_ns - origin_ns)},
                          {"args", {{"bytes", event.size_bytes}}}});
      }
    }
    for (const TimelineLane lane : kAllTimelineLanes) {
      for (size_t row = 0; row < std::max<size_t>(1, rows.Count(lane)); ++row) {
        events.push_back(
            Metadata(process_id, Rows::Id(lane, row), "thread_name", TimelineLaneName(lane)));
      }
    }
  }
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace gemini::tools
