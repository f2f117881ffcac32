// SPDX-License-Identifier: Apache-2.0
// Runs gemini-trace, which foretells the steps of one model (trainer/forecast/trace_exchange.h).
// Owner:  the process ends with this object, whose destructor waits for that.
// Thread: one at a time. Blocks while the process computes, without a limit: Ctrl-C ends both.
// Errors: FAILED_PRECONDITION: there is no such program, it is of another version of Gemini, or it
//         ended; the message has its path. INVALID_ARGUMENT, INTERNAL: it answered
//         something else. Others are those of TraceStep.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/system/unique_fd.h"
#include "trainer/forecast/named_trace.h"
#include "trainer/forecast/ranks_exchange.h"
#include "trainer/forecast/ranks_forecast.h"
#include "trainer/forecast/trace_exchange.h"

namespace gemini::tools {

class TraceHelper {
 public:
  // `program` is its path; the directory `model` has a config.json. The process starts with the
  // first request.
  TraceHelper(std::string program, std::string model)
      : program_(std::move(program)), model_(std::move(model)) {}
  ~TraceHelper();
  TraceHelper(const TraceHelper&) = delete;
  TraceHelper& operator=(const TraceHelper&) = delete;

  // Returns the trace of the request, at once if it was asked for before.
  absl::StatusOr<trainer::NamedTrace> Trace(const trainer::TraceRequest& request);

  // Returns what a step of several ranks takes. It is computed anew each time.
  absl::StatusOr<trainer::RanksForecast> Ranks(const trainer::RanksRequest& request);

  // Returns the path of the program beside the running one.
  static std::string ProgramBesideThis();

 private:
  absl::Status Start();
  absl::StatusOr<trainer::NamedTrace> Ask(const std::string& line);
  // Sends a request, and returns where in `buffer_` the line ends that answers it.
  absl::StatusOr<size_t> AskForLine(const std::string& line);
  absl::Status Send(absl::string_view text);
  // Reads until `buffer_` has at least so many bytes.
  absl::Status Fill(size_t size_bytes);
  // Says why nothing comes any more, now and from now on: the process ended, or it said what it
  // should not.
  absl::Status Ended();
  absl::Status End(const absl::Status& why);
  // Lets the process end, and returns its status.
  int Reap();

  const std::string program_;
  const std::string model_;
  pid_t process_ = 0;  // 0: it has not started, or is over.
  absl::Status ended_;
  UniqueFd socket_;  // Its standard input and output.
  std::string buffer_;
  std::map<std::string, trainer::NamedTrace> known_;  // By request.
};

}  // namespace gemini::tools
