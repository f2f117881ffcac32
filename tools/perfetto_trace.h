// SPDX-License-Identifier: Apache-2.0
// Writes timelines as a Trace Event file, which ui.perfetto.dev opens: one process for what
// happened and one for what was planned, one row a lane, DEVICE bytes as a counter, each wait as an
// event of its own that names its cause.
// Units:  microseconds in the file, from the earliest event.
// Source: "Trace Event Format" (Chromium project), complete ("X"), counter ("C") and metadata ("M")
//         events.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gemini/shm/timeline_shm.h"
#include "nlohmann/json.hpp"

namespace gemini::tools {

// A row set of the file: events of one process.
struct TimelineProcess {
  std::string name;  // "actual", "planned".
  std::vector<TimelineEvent> events;
  // Space names, if there is more than one: events of other spaces than the first have the name of
  // theirs appended.
  std::map<uint16_t, std::string> spaces = {};
};

// Returns the file's object. Each process begins at 0, so that a plan lies beneath what happened.
// Events of a lane that overlap without nesting, which the format does not allow in a row, get rows
// of the same name.
nlohmann::json PerfettoTrace(absl::Span<const TimelineProcess> processes);

}  // namespace gemini::tools
