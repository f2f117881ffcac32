// SPDX-License-Identifier: Apache-2.0
// Runs gemini-trace, which predicts the steps of one model (trainer/forecast/trace_exchange.h).
// Owner:  the process ends with this object, which kills it: it has nothing to put in order.
// Thread: one at a time. Blocks while the process computes, up to a limit; Ctrl-C ends both.
// Errors: FAILED_PRECONDITION: there is no such program, it is of another version of Gemini, or it
//         ended; the message has its path. DEADLINE_EXCEEDED: it did not answer in time, and is
//         over. INVALID_ARGUMENT, INTERNAL: it answered something else. Others are those of
//         TraceStep.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "trainer/forecast/named_trace.h"
#include "trainer/forecast/ranks_exchange.h"
#include "trainer/forecast/ranks_forecast.h"
#include "trainer/forecast/trace_exchange.h"

namespace gemini::tools {

class TraceHelper {
 public:
  // `program` is its path; the directory `model` has a config.json. The process starts with the
  // first request. `limit`: what one request may take.
  TraceHelper(std::string program, std::string model, absl::Duration limit)
      : program_(std::move(program)), model_(std::move(model)), limit_(limit) {}
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
  // Waits for one of these events of poll, until the request's time is over.
  absl::Status Await(short events);
  // Reads until `buffer_` has at least so many bytes.
  absl::Status Fill(size_t size_bytes);
  // Says why nothing comes any more, now and from now on: the process ended, or it said what it
  // should not.
  absl::Status Ended();
  absl::Status End(const absl::Status& why);
  // Ends the process, and returns its status: its own, where it has ended or is about to.
  int Reap();

  const std::string program_;
  const std::string model_;
  const absl::Duration limit_;
  absl::Duration deadline_;  // Of the request that is answered, by MonotonicNow.
  pid_t process_ = 0;        // 0: it has not started, or is over.
  absl::Status ended_;
  UniqueFd socket_;  // Its standard input and output.
  std::string buffer_;
  std::map<std::string, trainer::NamedTrace> known_;  // By request.
};

}  // namespace gemini::tools
